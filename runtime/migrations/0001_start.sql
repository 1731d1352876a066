CREATE TABLE runs (
  run      TEXT PRIMARY KEY,
  command  TEXT NOT NULL,
  settings TEXT NOT NULL,                    -- JSON, as resolved when the run was opened; secrets masked
  created  REAL NOT NULL,
  state    TEXT NOT NULL                     -- open | finished
    CHECK (state IN ('open', 'finished')),
  started  INTEGER NOT NULL DEFAULT 0        -- the source's first admissions are recorded
) STRICT, WITHOUT ROWID;

CREATE TABLE items (
  seq      INTEGER PRIMARY KEY AUTOINCREMENT, -- order of recording: terminal items are replayed in it
  run      TEXT NOT NULL REFERENCES runs,
  queue    TEXT NOT NULL,
  item     TEXT NOT NULL,
  state    TEXT NOT NULL
    CHECK (state IN ('pending', 'done', 'terminal')),
  attempts INTEGER NOT NULL DEFAULT 0,       -- that failed
  body     BLOB,                             -- NULL once done: the next queue's message carries the item on
  updated  REAL NOT NULL,
  UNIQUE (run, queue, item)
) STRICT;

-- An item is in one place, or at its end: never in two, whatever a handler returns.
CREATE UNIQUE INDEX one_place ON items (run, item) WHERE state <> 'done';
CREATE INDEX by_state ON items (run, state, seq);

CREATE TABLE events (
  seq    INTEGER PRIMARY KEY AUTOINCREMENT,
  run    TEXT NOT NULL,
  item   TEXT NOT NULL,
  at     REAL NOT NULL,
  kind   TEXT NOT NULL,
  stage  TEXT NOT NULL,
  detail TEXT NOT NULL
) STRICT;
CREATE INDEX events_of_item ON events (run, item, seq);

CREATE TABLE calls (
  key               TEXT PRIMARY KEY,
  request_digest    TEXT NOT NULL,
  response          BLOB NOT NULL,
  prompt_tokens     INTEGER NOT NULL,
  completion_tokens INTEGER NOT NULL,
  cost              REAL NOT NULL,
  attempts          INTEGER NOT NULL,
  at                REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE leases (
  name  TEXT PRIMARY KEY,                    -- what is owned: "run/<run>", a sandbox id, ...
  owner TEXT NOT NULL                        -- <boot id>:<pid>:<start ticks>
) STRICT, WITHOUT ROWID;
