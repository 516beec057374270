"""Many reward, judge and teacher models in the memory of few devices: each is resident, parked or cold."""
