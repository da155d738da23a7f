"""The Python client of a tunefarm service. Needs no compiler."""

from tunefarm.client.client import Client as Client
from tunefarm.client.client import ClientError as ClientError
from tunefarm.client.client import ProblemError as ProblemError
from tunefarm.client.client import UnreachableError as UnreachableError
