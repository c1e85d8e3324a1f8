"""The filter language of topic rules: compiled once, evaluated for every message.

    lexer -> parser -> ast -> evaluate (closures)       text: from a tree back to text
    values: types and operators     like: patterns      parameters: @names
    reading: what a rule sees of a message
    actions: SET and REMOVE     correlation: equality of fields
    rules: filters and actions together       records: the stored form
    selectors: the JMS dialect, for receivers

Pure, like the rest of the domain: `newid()` calls a function of the `Reading`.
docs/reference/filters.md describes the language.
"""

from __future__ import annotations

from bendybus.domain.filters.actions import NO_CHANGES, Changes, SqlRuleAction
from bendybus.domain.filters.correlation import CorrelationFilter
from bendybus.domain.filters.reading import MessageView, Reading, SystemProperty
from bendybus.domain.filters.records import rule_from_record, rule_to_record
from bendybus.domain.filters.rules import (
    DEFAULT_RULE,
    DEFAULT_RULE_NAME,
    FALSE_EXPRESSION,
    TRUE_EXPRESSION,
    Copy,
    Failure,
    FalseFilter,
    Filter,
    Outcome,
    RuleDescription,
    SqlFilter,
    TrueFilter,
    match,
    matching,
    sql_filter,
)
from bendybus.domain.filters.selectors import Selector, SelectorFilter
from bendybus.domain.filters.values import Spelling, Value

__all__ = [
    "DEFAULT_RULE",
    "DEFAULT_RULE_NAME",
    "FALSE_EXPRESSION",
    "NO_CHANGES",
    "Changes",
    "Copy",
    "CorrelationFilter",
    "Failure",
    "FalseFilter",
    "Filter",
    "MessageView",
    "Outcome",
    "Reading",
    "RuleDescription",
    "Selector",
    "SelectorFilter",
    "SqlFilter",
    "SqlRuleAction",
    "SystemProperty",
    "TRUE_EXPRESSION",
    "TrueFilter",
    "Spelling",
    "Value",
    "match",
    "matching",
    "rule_from_record",
    "rule_to_record",
    "sql_filter",
]
