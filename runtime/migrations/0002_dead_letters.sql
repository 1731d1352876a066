-- An item that was given up, with the message its stage could not work off: it can be put back.
CREATE TABLE dead_letters (
  run    TEXT NOT NULL,
  queue  TEXT NOT NULL,
  item   TEXT NOT NULL,
  body   BLOB NOT NULL,
  reason TEXT NOT NULL,
  at     REAL NOT NULL,
  PRIMARY KEY (run, item)
) STRICT, WITHOUT ROWID;
