"""The scheduling simulator: discrete events under virtual time."""
