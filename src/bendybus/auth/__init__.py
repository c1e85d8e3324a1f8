"""Who may do what: SAS keys, the tokens made with them or by others, and what a connection may.

Imports `errors` and `names` only, reads no clock and opens nothing: the time and
the keys are always handed in. Read in this order: rights, paths, rules, sas, jwt, claims.
A client's side of it, where a namespace is and which key opens it: connection_strings.
"""
