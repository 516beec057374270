"""The files of sandboxes: images, root file systems, and what sandboxes changed in them."""
