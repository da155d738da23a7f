"""A candidate's library on its way from the builder to the service, and what the service says to it."""

from __future__ import annotations

import hashlib

from proto import fleet_pb2 as pb
from proto.convert import MAX_ID, WireError, lease_id_from_wire, lease_id_to_wire
from proto.messages import MAX_LIBRARY_BYTES, Library


def library_to_wire(library: Library) -> pb.Library:
    return pb.Library(
        session_id=library.session_id,
        lease=lease_id_to_wire(library.lease),
        trial_id=library.trial_id,
        sha256=library.sha,
        data=library.data,
    )


def library_from_wire(message: pb.Library) -> Library:
    """Raises WireError, also when the content isn't what its digest says."""
    if message.trial_id > MAX_ID:
        raise WireError(f"{message.trial_id} is not an id")
    if len(message.data) > MAX_LIBRARY_BYTES:
        raise WireError(f"a library has at most {MAX_LIBRARY_BYTES} bytes, not {len(message.data)}")
    if hashlib.sha256(message.data).hexdigest() != message.sha256:
        raise WireError("the library arrived damaged: its SHA-256 is another one")
    lease = lease_id_from_wire(message.lease)
    return Library(message.session_id, lease, message.trial_id, message.data)
