"""The errors of compiled models. Each message is one sentence for the user."""


class RunError(ValueError):
    """The model can't run on these inputs."""


class NoSuchSize(RunError):
    """The model was not compiled for the shapes of these inputs."""


class LoadError(RunError):
    """The folder holds no compiled model that this machine can run."""
