"""Outside APIs and functions as tools, judges behind an API, and the quotas of the keys that pay for them."""
