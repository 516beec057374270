"""Programs that games put into their sandboxes; each runs there by itself and imports nothing from here."""
