"""Which tokens a call continues: a tree of a trajectory's calls, exact to the token, and the samples it makes."""
