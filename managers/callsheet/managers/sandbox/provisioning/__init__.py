"""How a trajectory gets its sandbox: made anew, begun with the files of an earlier set-up, or from a warm pool."""
