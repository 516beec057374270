"""Policy versions under load: whether what engines serve is what was published."""
