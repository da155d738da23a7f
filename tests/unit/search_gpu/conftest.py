from hypothesis import settings

# A busy machine is no failure: no test here depends on a clock.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
