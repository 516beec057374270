"""Programs that coding tasks put into their sandboxes; each runs there by itself and imports nothing from here."""
