"""The core's vocabulary: values without behaviour, which every other part of the core imports."""
