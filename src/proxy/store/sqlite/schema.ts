/**
 * The tables, and the migrations that create them. `docs/store.md` explains their design.
 *
 * There are no foreign keys: rows of a tree are written by one thread, and they are removed together, by tree.
 */
import type Database from 'better-sqlite3'
import { ProxyError } from '../../../base/errors.ts'
import type { SchemaChange } from '../common/calls.ts'
import { countIds } from '../common/packing.ts'

/** Identifies a database of llm-proxy (`PRAGMA application_id`): `llmp` in ASCII. */
const APPLICATION_ID = 0x6c6c6d70

const FIRST_SCHEMA = `
CREATE TABLE trees (
  id      INTEGER PRIMARY KEY AUTOINCREMENT, -- Never given twice: a reader may still hold the id of one that is gone.
  dropped INTEGER NOT NULL DEFAULT 0         -- 1: its session was deleted or reset; its rows are removed bit by bit.
);
CREATE INDEX trees_dropped ON trees (id) WHERE dropped = 1;

CREATE TABLE sessions (
  id                INTEGER PRIMARY KEY,
  session_id        TEXT NOT NULL UNIQUE,
  tree              INTEGER NOT NULL,  -- trees.id: where its turns are. A reset gives the session a new tree.
  status            TEXT NOT NULL,     -- active, completed, aborted
  created_at_ms     INTEGER NOT NULL,  -- This and all times: milliseconds since the epoch.
  updated_at_ms     INTEGER NOT NULL,
  ended_at_ms       INTEGER,
  ttl_ms            INTEGER,           -- Swept this long after updated_at_ms; NULL: never.
  metadata          TEXT NOT NULL,     -- JSON object
  sampling_params   TEXT NOT NULL,     -- JSON object
  reward            REAL,
  reward_components TEXT,              -- JSON object; NULL where reward is NULL.
  turn_count        INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX sessions_by_age ON sessions (created_at_ms);
CREATE INDEX sessions_by_expiry ON sessions (updated_at_ms + ttl_ms) WHERE ttl_ms IS NOT NULL;

-- Texts that turns point to: messages, tools, params. Each is stored once per tree.
-- All text columns here and in turns hold a blob of UTF-16LE where the text has lone surrogates.
CREATE TABLE texts (
  id      INTEGER PRIMARY KEY,
  tree    INTEGER NOT NULL,
  hash    BLOB NOT NULL,    -- 16 bytes that tell texts apart; requests.ts makes them.
  echo_of INTEGER,          -- turns.id whose completion this message repeats; NULL: body is the text itself.
  body    TEXT NOT NULL     -- Of an echo: a JSON array of literal text and, at odd places, the names of what stands
                            -- between: content, content_trimmed, reasoning, tool_calls, arguments.0, arguments.1 ...
);
CREATE UNIQUE INDEX texts_by_hash ON texts (tree, hash);

-- Histories. A node is the message list of a request: its parent's list, then its own texts. The root is 0, the
-- empty list, and has no row.
CREATE TABLE nodes (
  id     INTEGER PRIMARY KEY,
  tree   INTEGER NOT NULL,
  parent INTEGER NOT NULL,  -- nodes.id or 0
  depth  INTEGER NOT NULL,  -- Number of messages from the root to here.
  texts  BLOB NOT NULL,     -- texts.id of each message after the parent's, packed as turns.prompt_rest is.
  hash   BLOB NOT NULL      -- 16 bytes that tell lists apart; requests.ts makes them.
);
CREATE UNIQUE INDEX nodes_by_hash ON nodes (tree, hash);

CREATE TABLE turns (
  id                   INTEGER PRIMARY KEY AUTOINCREMENT, -- Never given twice: caches of token ids are keyed by it.
  tree                 INTEGER NOT NULL,
  call_index           INTEGER NOT NULL,  -- Order of calls in the session, from 0.
  turn_id              TEXT NOT NULL,
  status               TEXT NOT NULL,     -- open, completed, aborted, failed, interrupted
  dialect              TEXT NOT NULL,     -- chat, completions, messages, responses
  started_at_ms        INTEGER NOT NULL,
  retry_count          INTEGER NOT NULL,
  node                 INTEGER NOT NULL,  -- nodes.id of the last request message; 0 where there is none.
  tools                INTEGER,           -- texts.id
  params               INTEGER NOT NULL,  -- texts.id
  -- From here on NULL until the turn is closed.
  ended_at_ms          INTEGER,
  first_token_at_ms    INTEGER,
  model                TEXT,
  engine               TEXT,
  finish_reason        TEXT,
  stop_reason          TEXT,              -- JSON string or number
  exact                INTEGER,           -- 1: ids and logprobs are complete and consistent.
  inexact_reason       TEXT,
  weight_version_start TEXT,
  weight_version_end   TEXT,
  usage                TEXT,              -- JSON object
  annotations          TEXT,              -- JSON object; NULL where it is empty.
  error_code           TEXT,
  error_message        TEXT,
  completion_text      TEXT,
  reasoning            TEXT,
  tool_calls           TEXT,              -- JSON array
  -- The prompt's ids are the first prompt_shared ids of (prompt ids, completion ids) of the turn prompt_base, then
  -- those in prompt_rest. All three are NULL where the engine told no prompt ids; prompt_base alone, where
  -- prompt_rest has them all.
  prompt_base          INTEGER,           -- turns.id of an earlier closed turn of the same tree.
  prompt_shared        INTEGER,
  prompt_rest          BLOB,              -- 0x01 and LEB128 numbers, or 0x02 and int32 numbers.
  completion_ids       BLOB,              -- As prompt_rest.
  completion_logprobs  BLOB               -- 0x01 and float32 numbers, or 0x02 and float64 numbers.
);
CREATE UNIQUE INDEX turns_by_id ON turns (tree, turn_id);
CREATE INDEX turns_in_order ON turns (tree, call_index);
CREATE INDEX turns_by_node ON turns (tree, node);
CREATE INDEX turns_open ON turns (tree) WHERE status = 'open';
`

const TRUSTED_AGENTS = `
-- 1: an agent that has no more than the session's key is heard on its own record.
ALTER TABLE sessions ADD COLUMN trust_agent INTEGER NOT NULL DEFAULT 0;
`

/** `id_count` returns the number of ids in a packed column; see {@link migrate}. */
const SESSION_COUNTS = `
-- Kept up to date with turns, so that a list of sessions need not read them.
ALTER TABLE sessions ADD COLUMN open_turns     INTEGER NOT NULL DEFAULT 0; -- In flight.
ALTER TABLE sessions ADD COLUMN failed_turns   INTEGER NOT NULL DEFAULT 0; -- failed or interrupted
ALTER TABLE sessions ADD COLUMN inexact_turns  INTEGER NOT NULL DEFAULT 0; -- completed, but exact is 0
ALTER TABLE sessions ADD COLUMN sampled_tokens INTEGER NOT NULL DEFAULT 0;
UPDATE sessions SET
  (open_turns, failed_turns, inexact_turns, sampled_tokens) = (
    SELECT count(*) FILTER (WHERE status = 'open'),
           count(*) FILTER (WHERE status IN ('failed', 'interrupted')),
           count(*) FILTER (WHERE status = 'completed' AND exact = 0),
           coalesce(sum(id_count(completion_ids)), 0)
    FROM turns WHERE turns.tree = sessions.tree
  );
`

const PROMPT_CHUNKS = `
-- nodes.id of the pieces of a completion's prompt; 0 where there is none. Turns that are older have it in params.
ALTER TABLE turns ADD COLUMN prompt_node INTEGER NOT NULL DEFAULT 0;
`

const DETAILS = `
-- What an engine told of a turn's tokens beyond ids and logprobs. Apart from turns, so that reading those reads none of it.
CREATE TABLE details (
  id   INTEGER PRIMARY KEY,
  tree INTEGER NOT NULL,
  turn INTEGER NOT NULL,  -- turns.id
  kind TEXT NOT NULL,     -- sampling_mask, top_logprobs, ...
  body BLOB NOT NULL      -- A safetensors file.
);
CREATE UNIQUE INDEX details_by_turn ON details (tree, turn, kind);
-- JSON array of what turns are recorded with; NULL: what the proxy records of any session.
ALTER TABLE sessions ADD COLUMN record TEXT;
`

const POLICIES = `
ALTER TABLE sessions ADD COLUMN policies     TEXT NOT NULL DEFAULT '{}'; -- JSON object: names of models by line
ALTER TABLE sessions ADD COLUMN reward_lines TEXT;                       -- JSON object; NULL: no line has its own.
`

const CHECK_SUMS = `
-- CRC-32 of what a row holds (check-sums.ts); NULL in rows that are older, and in turns that are open.
ALTER TABLE turns ADD COLUMN ids_sum INTEGER;  -- Of the prompt's columns and completion_ids.
ALTER TABLE turns ADD COLUMN turn_sum INTEGER; -- Of all others but status, the error's and annotations, which may change.
ALTER TABLE nodes ADD COLUMN node_sum INTEGER;
ALTER TABLE details ADD COLUMN detail_sum INTEGER;
ALTER TABLE sessions ADD COLUMN reward_sum INTEGER; -- Of the reward with all that is given beside it.
`

const KEY_TAGS = `
-- Base64url of what is in the key of the session's agent and ends with it; NULL: the session's name alone is.
ALTER TABLE sessions ADD COLUMN key_tag TEXT;
`

const BLOBS = `
-- Bytes that messages bring as base64 (images): once for all sessions.
CREATE TABLE blobs (
  id     INTEGER PRIMARY KEY,
  sha256 BLOB NOT NULL UNIQUE, -- Of body.
  body   BLOB NOT NULL
);
-- Which trees have texts with a blob. It goes with the last of them.
CREATE TABLE blob_uses (
  id   INTEGER PRIMARY KEY,
  tree INTEGER NOT NULL,
  blob INTEGER NOT NULL        -- blobs.id
);
CREATE UNIQUE INDEX blob_uses_by_tree ON blob_uses (tree, blob);
CREATE INDEX blob_uses_by_blob ON blob_uses (blob);
CREATE TRIGGER blobs_unused AFTER DELETE ON blob_uses
WHEN NOT EXISTS (SELECT 1 FROM blob_uses WHERE blob = old.blob)
BEGIN
  DELETE FROM blobs WHERE id = old.blob;
END;
-- blobs.id of each blob in a text, packed as turns.prompt_rest is; body is then a JSON array of the texts before,
-- between and after them. NULL: none. Texts that are older have the base64 in body.
ALTER TABLE texts ADD COLUMN blobs BLOB;
`

const EDITED_CALLS = `
-- auto, keep or branch; NULL: as the proxy has it.
ALTER TABLE sessions ADD COLUMN edited_calls TEXT;
`

const REWARD_TURNS = `
ALTER TABLE sessions ADD COLUMN reward_turns TEXT; -- JSON object, by index of turns; NULL: no turn has its own.
`

const LIMITS = `
ALTER TABLE sessions ADD COLUMN limits TEXT; -- JSON object; NULL: none.
`

const CONSUMERS = `
CREATE TABLE consumers (
  id            INTEGER PRIMARY KEY AUTOINCREMENT, -- Never given twice: rows of one that is gone may be left.
  name          TEXT NOT NULL UNIQUE,
  id_prefix     TEXT NOT NULL,    -- What the ids of its sessions begin with.
  created_at_ms INTEGER NOT NULL,
  since_ms      INTEGER NOT NULL, -- Only sessions that ended then or later.
  hold_ms       INTEGER NOT NULL, -- A session is not swept so long after its end, unless acknowledged.
  selection     TEXT NOT NULL     -- JSON object: which of them, and how many at a time
);
-- Sessions that a consumer was given. They go with their trees.
CREATE TABLE consumer_sessions (
  id              INTEGER PRIMARY KEY,
  tree            INTEGER NOT NULL,
  consumer        INTEGER NOT NULL, -- consumers.id
  session         INTEGER NOT NULL, -- sessions.id
  lease_id        TEXT NOT NULL,    -- Of the lease that had it last.
  leased_until_ms INTEGER,          -- NULL: acknowledged
  deliveries      INTEGER NOT NULL  -- How often it was leased.
);
CREATE UNIQUE INDEX consumer_sessions_by_tree ON consumer_sessions (tree, consumer);
CREATE INDEX consumer_sessions_by_lease ON consumer_sessions (consumer, lease_id);
CREATE INDEX consumer_sessions_leased ON consumer_sessions (consumer) WHERE leased_until_ms IS NOT NULL;
CREATE INDEX sessions_by_end ON sessions (ended_at_ms, tree) WHERE status = 'completed';
`

const SESSIONS_BY_TREE = `
CREATE UNIQUE INDEX sessions_by_tree ON sessions (tree); -- Whose a turn is that a search has found.
`

const MARKS = `
ALTER TABLE sessions ADD COLUMN marks TEXT; -- JSON object: labels and notes of people, by index of turns too; NULL: none.
`

const IMPORTS = `
-- What \`sessions import\` has put here. Rows stay when the session or consumer is deleted: it is not imported again.
CREATE TABLE imports (
  id            INTEGER PRIMARY KEY,
  kind          TEXT NOT NULL,    -- session, consumer
  name          TEXT NOT NULL,
  created_at_ms INTEGER NOT NULL  -- Of the session or consumer.
);
CREATE UNIQUE INDEX imports_by_name ON imports (kind, name, created_at_ms);
`

const GROUPS = `
-- Hash of the metadata value that the sessions of a group share; NULL: the consumer has not put it into a group.
ALTER TABLE consumer_sessions ADD COLUMN group_hash TEXT;
CREATE INDEX consumer_sessions_by_group ON consumer_sessions (consumer, group_hash, leased_until_ms, lease_id, tree)
  WHERE group_hash IS NOT NULL AND leased_until_ms IS NOT NULL;
`

const CONTINUE_RESPONSES = `
ALTER TABLE sessions ADD COLUMN continue_responses INTEGER; -- 0 or 1; NULL: as the proxy is configured.
`

/**
 * Migration n leads from version n to n + 1. A released migration must not be edited, since existing databases have run
 * it.
 */
const MIGRATIONS: readonly string[] = [
  FIRST_SCHEMA,
  TRUSTED_AGENTS,
  SESSION_COUNTS,
  PROMPT_CHUNKS,
  DETAILS,
  POLICIES,
  CHECK_SUMS,
  KEY_TAGS,
  BLOBS,
  EDITED_CALLS,
  REWARD_TURNS,
  LIMITS,
  CONSUMERS,
  SESSIONS_BY_TREE,
  MARKS,
  IMPORTS,
  GROUPS,
  CONTINUE_RESPONSES,
]

const SCHEMA_VERSION = MIGRATIONS.length

/** Migrates the database to this version. @throws ProxyError `start_failed` as {@link checkOwner} does */
export function migrate(db: Database.Database, path: string): SchemaChange | undefined {
  const version = checkOwner(db, path)
  db.function('id_count', { deterministic: true }, (packed) =>
    packed === null ? 0 : countIds(packed as Buffer),
  )
  for (const [step, sql] of MIGRATIONS.entries()) {
    if (step < version) continue
    const run = db.transaction(() => {
      db.exec(sql)
      db.pragma(`application_id = ${APPLICATION_ID}`)
      db.pragma(`user_version = ${step + 1}`)
    })
    run.exclusive()
  }
  return version > 0 && version < SCHEMA_VERSION ? { from: version, to: SCHEMA_VERSION } : undefined
}

/**
 * Checks the schema for readers, which must not migrate. @throws ProxyError `start_failed` unless it has this version
 */
export function checkSchema(db: Database.Database, path: string): void {
  const version = checkOwner(db, path)
  if (version === SCHEMA_VERSION) return
  throw new ProxyError(
    'start_failed',
    `${path} has schema version ${version}, this llm-proxy reads version ${SCHEMA_VERSION}: ` +
      'start the server on it once to bring it up to date',
  )
}

/**
 * Checks that a database belongs to llm-proxy and is not too new.
 * @returns the schema version; 0 for an empty database
 * @throws ProxyError `start_failed` if the database is newer than this program, or another program's
 */
export function checkOwner(db: Database.Database, path: string): number {
  const version = db.pragma('user_version', { simple: true }) as number
  const application = db.pragma('application_id', { simple: true })
  const tables = db.prepare<[], number>('SELECT count(*) FROM sqlite_schema').pluck().get()
  if (application !== APPLICATION_ID && (tables !== 0 || version !== 0)) {
    throw new ProxyError(
      'start_failed',
      `${path} is a database of another program: name another file for llm-proxy`,
    )
  }
  if (version > SCHEMA_VERSION) {
    throw new ProxyError(
      'start_failed',
      `${path} has schema version ${version}, this llm-proxy knows versions up to ${SCHEMA_VERSION}: ` +
        'use the newer llm-proxy that wrote it, or another file',
    )
  }
  return version
}
