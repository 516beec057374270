"""Laws under long loads. Small and seeded by default; `make nightly` proves them in full size."""
