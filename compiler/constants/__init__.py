"""A model's constants: folded, reshaped for TVM's passes, and packed for the schedules that read them."""
