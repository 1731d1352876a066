"""The families there are, and how to find one.

A family is a module: its name, category, tools, depths and `draw` are module attributes. Adding one is a line here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from generators.procedural.families import (
    archives,
    auth_forensics,
    awk_report,
    backup_rotate,
    basics_files,
    basics_text,
    budget_puzzles,
    certificates,
    checksums,
    classifier_metrics,
    config_ini,
    config_toml_dotenv,
    config_yaml,
    cron_lines,
    cron_table,
    csv_filter,
    diff_and_patch,
    disk_report,
    dockerfiles,
    encodings,
    env_and_path,
    find_and_act,
    git_history,
    git_repair,
    graph_routes,
    html_extract,
    json_query,
    jsonl_dataset,
    links_and_trees,
    log_analysis,
    makefiles,
    markdown_docs,
    measurement_series,
    nginx_site,
    permissions,
    postgres_tables,
    process_and_port,
    process_snapshot,
    python_bugfix,
    record_cleanup,
    redis_keys,
    release_notes,
    requirement_pins,
    run_records,
    script_bugfix,
    sed_edit,
    sqlite_query,
    sqlite_schema,
    ssh_access,
    table_joins,
    text_columns,
    time_zones,
    unit_conversion,
    unit_files,
    user_accounts,
    zone_moves,
)
from generators.procedural.family import Family

BASICS: tuple[Family, ...] = (
    basics_text.APPEND,
    basics_files.COPY,
    basics_text.COUNT,
    basics_files.DELETE,
    basics_files.DIRECTORY,
    basics_text.FIRST,
    basics_text.JOIN,
    basics_text.LAST,
    basics_files.MOVE,
    basics_text.REPLACE,
    basics_text.SORT,
)
"""The curriculum of small policies: what terse tasks are made of, and nothing else is unless it asks for them by name."""

SERVICES: tuple[Family, ...] = (cron_table, nginx_site, postgres_tables, redis_keys, ssh_access)
"""Families whose pieces have services. Their base is larger and made when it is first needed, so a run without names
of families draws none of them."""

FAMILIES: tuple[Family, ...] = (
    archives,
    auth_forensics,
    awk_report,
    backup_rotate,
    *BASICS,
    budget_puzzles,
    certificates,
    checksums,
    classifier_metrics,
    config_ini,
    config_toml_dotenv,
    config_yaml,
    cron_lines,
    cron_table,
    csv_filter,
    diff_and_patch,
    disk_report,
    dockerfiles,
    encodings,
    env_and_path,
    find_and_act,
    git_history,
    git_repair,
    graph_routes,
    html_extract,
    json_query,
    jsonl_dataset,
    links_and_trees,
    log_analysis,
    makefiles,
    markdown_docs,
    measurement_series,
    nginx_site,
    permissions,
    postgres_tables,
    process_and_port,
    process_snapshot,
    python_bugfix,
    record_cleanup,
    redis_keys,
    release_notes,
    requirement_pins,
    run_records,
    script_bugfix,
    sed_edit,
    sqlite_query,
    sqlite_schema,
    ssh_access,
    table_joins,
    text_columns,
    time_zones,
    unit_conversion,
    unit_files,
    user_accounts,
    zone_moves,
)
"""Sorted by name, so that what a seed draws does not depend on the order in which families were added to this file."""

CATEGORIES: tuple[str, ...] = tuple(sorted({family.category for family in FAMILIES if family not in SERVICES}))
"""The categories that can be drawn without a model."""


def named(name: str) -> Family:
    """The family of this name. Raises: KeyError."""
    return {family.name: family for family in FAMILIES}[name]


def members(style: str, names: Collection[str]) -> tuple[Family, ...]:
    """The families that tasks of a style are made of: those of these names, if any are given."""
    if names:
        return tuple(family for family in FAMILIES if family.name in names)
    return BASICS if style == "terse" else tuple(family for family in FAMILIES if family not in (*BASICS, *SERVICES))


def in_category(category: str) -> tuple[Family, ...]:
    """The families of a category, perhaps none."""
    return tuple(family for family in FAMILIES if family.category == category)


def using(tools: Iterable[str]) -> tuple[Family, ...]:
    """The families whose reference uses one of these programs."""
    wanted = set(tools)
    return tuple(family for family in FAMILIES if wanted & set(family.tools))
