-- The schema of version 0.1's ledgers, as the build wrote it.
BEGIN TRANSACTION;
CREATE TABLE entries (
	seq INTEGER NOT NULL, 
	time TEXT NOT NULL, 
	event TEXT NOT NULL, 
	dataset TEXT NOT NULL, 
	release TEXT NOT NULL, 
	attempt TEXT, 
	payload TEXT NOT NULL, 
	salt TEXT NOT NULL, 
	previous TEXT NOT NULL, 
	hash TEXT NOT NULL, 
	PRIMARY KEY (seq), 
	UNIQUE (previous), 
	UNIQUE (hash)
);
CREATE TABLE meta (
	one INTEGER NOT NULL, 
	schema_version INTEGER NOT NULL, 
	PRIMARY KEY (one), 
	CONSTRAINT one_row CHECK (one = 1)
);
INSERT INTO "meta" VALUES(1,2);
CREATE UNIQUE INDEX one_publication ON entries (release) WHERE event = 'published';
CREATE INDEX entries_by_release ON entries (release);
CREATE INDEX entries_by_dataset ON entries (dataset);
CREATE TRIGGER entries_not_updated BEFORE UPDATE ON entries
BEGIN SELECT RAISE(ABORT, 'entries are never changed'); END;
CREATE TRIGGER entries_not_deleted BEFORE DELETE ON entries
BEGIN SELECT RAISE(ABORT, 'entries are never removed'); END;
CREATE TRIGGER entries_appended BEFORE INSERT ON entries
WHEN NEW.seq IS NOT (SELECT coalesce(max(seq), 0) + 1 FROM entries)
OR NEW.previous IS NOT coalesce((SELECT hash FROM entries ORDER BY seq DESC LIMIT 1), printf('%064d', 0))
BEGIN SELECT RAISE(ABORT, 'entries are appended in order'); END;
COMMIT;
