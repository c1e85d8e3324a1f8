"""Authorization: SAS keys, tokens, and what a connection may do.

Imports `errors` and `names` only, reads no clock and opens nothing: the time and the keys are
arguments. Read in this order: rights, paths, key_ring, sas, roles, jwt, claims. For clients, where a
namespace is and which key opens it: connection_strings.
"""
