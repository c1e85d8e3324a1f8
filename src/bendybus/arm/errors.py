"""Errors as Azure Resource Manager writes them: `{"error": {"code": ..., "message": ...}}`.

Each error has its own status (errors.py). The SDKs raise an exception by the status. People and scripts use
the code, which is chosen here. The texts are ours and not Azure's, so that they say what to do.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from starlette.responses import JSONResponse, Response

from bendybus.errors import (
    BrokerError,
    EntityExists,
    InvalidOperation,
    MethodNotAllowed,
    NotSupported,
    PreconditionFailed,
    QuotaExceeded,
    RequestError,
    Unauthorized,
    Unavailable,
)

__all__ = [
    "Forbidden",
    "InvalidApiVersion",
    "LocationChanged",
    "MissingApiVersion",
    "ParentNotFound",
    "ResourceNotFound",
    "UnknownResource",
    "refused",
]


class ResourceNotFound(RequestError):
    """The resource that a request names does not exist."""

    condition = "amqp:not-found"
    status = 404


class ParentNotFound(ResourceNotFound):
    """The namespace, topic or subscription that a resource would be in does not exist."""


class UnknownResource(ResourceNotFound):
    """No resource of the provider has such a path."""


class Forbidden(Unauthorized):
    """The token is good, and its bearer may not do this. Azure answers 403, and 401 for other tokens."""

    status = 403


class MissingApiVersion(RequestError):
    """Every request to the resource manager says which version of the API it means."""


class InvalidApiVersion(RequestError):
    """A version that no client of today sends."""


class LocationChanged(RequestError):
    """A resource cannot move to another location."""

    status = 409


# The first class that fits an error gives its code.
CODES: Final[tuple[tuple[type[BrokerError], str], ...]] = (
    (ParentNotFound, "ParentResourceNotFound"),
    (UnknownResource, "InvalidResourceType"),
    (MissingApiVersion, "MissingApiVersionParameter"),
    (InvalidApiVersion, "InvalidApiVersionParameter"),
    (LocationChanged, "InvalidResourceLocation"),
    (Forbidden, "AuthorizationFailed"),
    (Unauthorized, "InvalidAuthenticationToken"),
    (QuotaExceeded, "QuotaExceeded"),
    (EntityExists, "Conflict"),
    (InvalidOperation, "OperationNotAllowed"),
    (MethodNotAllowed, "MethodNotAllowed"),
    (PreconditionFailed, "PreconditionFailed"),
    (NotSupported, "NotSupported"),
    (Unavailable, "ServiceUnavailable"),
)
# For the others, by their status.
BY_STATUS: Final = {
    HTTPStatus.BAD_REQUEST: "BadRequest",
    HTTPStatus.FORBIDDEN: "Forbidden",
    HTTPStatus.NOT_FOUND: "ResourceNotFound",
    HTTPStatus.CONFLICT: "Conflict",
}


def refused(error: BrokerError) -> Response:
    """The response to a request that is refused."""
    code = next((code for kind, code in CODES if isinstance(error, kind)), None)
    code = code or BY_STATUS.get(HTTPStatus(error.status), "InternalServerError")
    response = JSONResponse({"error": {"code": code, "message": error.description}}, error.status)
    if error.status == HTTPStatus.UNAUTHORIZED:
        response.headers["www-authenticate"] = 'Bearer error="invalid_token"'
    return response
