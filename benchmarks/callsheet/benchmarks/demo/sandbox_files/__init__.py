"""Programs that the demo puts into its sandboxes; each runs there by itself and imports nothing from here."""
