"""What many resets at once cost, with images, on one host and on several."""
