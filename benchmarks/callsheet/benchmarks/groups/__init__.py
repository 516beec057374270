"""Groups whose environments hang and crash, and trainers that are killed: what the quorum and the buffer are for."""
