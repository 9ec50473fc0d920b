/**
 * The tables, and the migrations that create them. The tables are those of SQLite (`../sqlite/schema.ts` and
 * `docs/store.md` explain them), in a separate PostgreSQL schema; the writer assigns ids.
 */

const FIRST_SCHEMA = `
CREATE TABLE llm_proxy.trees (
  id      bigint PRIMARY KEY,
  dropped bigint NOT NULL DEFAULT 0
);
CREATE INDEX trees_dropped ON llm_proxy.trees (id) WHERE dropped = 1;

-- Ids sort by bytes, as in SQLite.
CREATE TABLE llm_proxy.sessions (
  id                bigint PRIMARY KEY,
  session_id        text COLLATE "C" NOT NULL UNIQUE,
  tree              bigint NOT NULL,
  status            text NOT NULL,
  created_at_ms     bigint NOT NULL,
  updated_at_ms     bigint NOT NULL,
  ended_at_ms       bigint,
  ttl_ms            bigint,
  metadata          text NOT NULL,
  sampling_params   text NOT NULL,
  trust_agent       bigint NOT NULL,
  record            text,
  policies          text NOT NULL,
  edited_calls      text,
  key_tag           text,
  reward            double precision,
  reward_components text,
  reward_lines      text,
  reward_sum        bigint,
  turn_count        bigint NOT NULL,
  open_turns        bigint NOT NULL,
  failed_turns      bigint NOT NULL,
  inexact_turns     bigint NOT NULL,
  sampled_tokens    bigint NOT NULL
);
CREATE INDEX sessions_by_age ON llm_proxy.sessions (created_at_ms, id);
CREATE INDEX sessions_by_expiry ON llm_proxy.sessions ((updated_at_ms + ttl_ms)) WHERE ttl_ms IS NOT NULL;

CREATE TABLE llm_proxy.texts (
  id      bigint PRIMARY KEY,
  tree    bigint NOT NULL,
  hash    bytea NOT NULL,
  echo_of bigint,
  blobs   bytea,
  body    text NOT NULL
);
CREATE UNIQUE INDEX texts_by_hash ON llm_proxy.texts (tree, hash);

CREATE TABLE llm_proxy.nodes (
  id       bigint PRIMARY KEY,
  tree     bigint NOT NULL,
  parent   bigint NOT NULL,
  depth    bigint NOT NULL,
  texts    bytea NOT NULL,
  hash     bytea NOT NULL,
  node_sum bigint NOT NULL
);
CREATE UNIQUE INDEX nodes_by_hash ON llm_proxy.nodes (tree, hash);

CREATE TABLE llm_proxy.turns (
  id                   bigint PRIMARY KEY,
  tree                 bigint NOT NULL,
  call_index           bigint NOT NULL,
  turn_id              text COLLATE "C" NOT NULL,
  status               text NOT NULL,
  dialect              text NOT NULL,
  started_at_ms        bigint NOT NULL,
  retry_count          bigint NOT NULL,
  node                 bigint NOT NULL,
  tools                bigint,
  params               bigint NOT NULL,
  prompt_node          bigint NOT NULL,
  ended_at_ms          bigint,
  first_token_at_ms    bigint,
  model                text,
  engine               text,
  finish_reason        text,
  stop_reason          text,
  exact                bigint,
  inexact_reason       text,
  weight_version_start text,
  weight_version_end   text,
  usage                text,
  annotations          text,
  error_code           text,
  error_message        text,
  completion_text      text,
  reasoning            text,
  tool_calls           text,
  prompt_base          bigint,
  prompt_shared        bigint,
  prompt_rest          bytea,
  completion_ids       bytea,
  completion_logprobs  bytea,
  ids_sum              bigint,
  turn_sum             bigint
);
-- Packed numbers do not get smaller.
ALTER TABLE llm_proxy.turns
  ALTER COLUMN prompt_rest SET STORAGE EXTERNAL,
  ALTER COLUMN completion_ids SET STORAGE EXTERNAL,
  ALTER COLUMN completion_logprobs SET STORAGE EXTERNAL;
CREATE UNIQUE INDEX turns_by_id ON llm_proxy.turns (tree, turn_id);
CREATE INDEX turns_in_order ON llm_proxy.turns (tree, call_index, id);
CREATE INDEX turns_open ON llm_proxy.turns (tree) WHERE status = 'open';

CREATE TABLE llm_proxy.details (
  id         bigint PRIMARY KEY,
  tree       bigint NOT NULL,
  turn       bigint NOT NULL,
  kind       text NOT NULL,
  body       bytea NOT NULL,
  detail_sum bigint
);
CREATE UNIQUE INDEX details_by_turn ON llm_proxy.details (tree, turn, kind);

CREATE TABLE llm_proxy.blobs (
  id     bigint PRIMARY KEY,
  sha256 bytea NOT NULL UNIQUE,
  body   bytea NOT NULL
);
ALTER TABLE llm_proxy.blobs ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE TABLE llm_proxy.blob_uses (
  id   bigint PRIMARY KEY,
  tree bigint NOT NULL,
  blob bigint NOT NULL
);
CREATE UNIQUE INDEX blob_uses_by_tree ON llm_proxy.blob_uses (tree, blob);
CREATE INDEX blob_uses_by_blob ON llm_proxy.blob_uses (blob);

-- One row: who writes, and how far.
CREATE TABLE llm_proxy.writer (
  id         bigint PRIMARY KEY CHECK (id = 1),
  owner      text NOT NULL,   -- The process that writes.
  epoch      bigint NOT NULL, -- Raised by each connection that is to write: what an earlier one still sends is void.
  last_group bigint NOT NULL, -- The number of the last group of changes, to tell whether a lost answer was a commit.
  next_ids   text NOT NULL    -- JSON: the next id of each table.
);
INSERT INTO llm_proxy.writer VALUES (1, '', 0, 0, '{}');

-- For people, and for dashboards. What trains is the API's.
CREATE VIEW llm_proxy.session_list AS
  SELECT session_id, status, to_timestamp(created_at_ms / 1000.0) AS created_at,
    to_timestamp(updated_at_ms / 1000.0) AS updated_at, to_timestamp(ended_at_ms / 1000.0) AS ended_at,
    metadata::jsonb AS metadata, reward, reward_components::jsonb AS reward_components, turn_count, failed_turns,
    inexact_turns, sampled_tokens
  FROM llm_proxy.sessions;
CREATE VIEW llm_proxy.turn_list AS
  SELECT session_id, turn_id, call_index, turns.status, dialect, model, engine, finish_reason,
    to_timestamp(started_at_ms / 1000.0) AS started_at, turns.ended_at_ms - started_at_ms AS took_ms, retry_count,
    exact = 1 AS exact, inexact_reason, weight_version_start, weight_version_end, error_code, error_message,
    completion_text
  FROM llm_proxy.turns JOIN llm_proxy.sessions USING (tree);
`

const REWARD_TURNS = 'ALTER TABLE llm_proxy.sessions ADD COLUMN reward_turns text'

const LIMITS = 'ALTER TABLE llm_proxy.sessions ADD COLUMN limits text'

/** The nodes that write, and the owner of each session. */
const MANY_PROXIES = `
DROP TABLE llm_proxy.writer;
CREATE TABLE llm_proxy.proxies (
  id          bigint PRIMARY KEY GENERATED BY DEFAULT AS IDENTITY, -- Of a lease. A proxy that lost its own gets another.
  slot        bigint NOT NULL,      -- Ids of rows that it adds are this number modulo 1024: no two proxies give out one.
  name        text NOT NULL,        -- Of its machine or pod.
  url         text,                 -- Where the others reach it; null: it does not listen yet.
  lease_until timestamptz NOT NULL, -- By this server's clock. Then others may end the lease.
  ended       bigint NOT NULL DEFAULT 0, -- 1: what it owned is free, and nothing that it still sends counts.
  draining    bigint NOT NULL DEFAULT 0, -- 1: its sessions go to others as soon as they have no turn in flight.
  epoch       bigint NOT NULL,      -- Raised by each connection that is to write: what an earlier one still sends is void.
  last_group  bigint NOT NULL,      -- The number of the last group of changes, to tell whether a lost answer was a commit.
  next_ids    text NOT NULL,        -- JSON: how many ids of each table it has given out.
  seen        bigint NOT NULL DEFAULT 0, -- Up to which change of controls it has followed.
  drained     bigint NOT NULL DEFAULT 0  -- 1: paused, and none of its calls runs.
);
CREATE UNIQUE INDEX proxies_by_slot ON llm_proxy.proxies (slot) WHERE ended = 0;
ALTER TABLE llm_proxy.sessions
  ADD COLUMN owner   bigint NOT NULL DEFAULT 0, -- The lease of the proxy whose it is; 0: nobody's.
  ADD COLUMN epoch   bigint NOT NULL DEFAULT 0, -- Raised when it gets another owner: turns of an earlier one are refused.
  ADD COLUMN version bigint NOT NULL DEFAULT 0; -- Raised by each change, to tell whether what a proxy remembers still holds.
CREATE INDEX sessions_open ON llm_proxy.sessions (owner) WHERE open_turns > 0;
-- What is set for all proxies: paused, weight_version, engines.
CREATE TABLE llm_proxy.controls (
  name   text PRIMARY KEY,
  value  text NOT NULL, -- JSON.
  change bigint NOT NULL
);
CREATE SEQUENCE llm_proxy.control_changes;
`

const CONSUMERS = `
CREATE TABLE llm_proxy.consumers (
  id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name          text COLLATE "C" NOT NULL UNIQUE,
  id_prefix     text COLLATE "C" NOT NULL,
  created_at_ms bigint NOT NULL,
  since_ms      bigint NOT NULL,
  hold_ms       bigint NOT NULL,
  selection     text NOT NULL
);
CREATE TABLE llm_proxy.consumer_sessions (
  id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tree            bigint NOT NULL,
  consumer        bigint NOT NULL,
  session         bigint NOT NULL,
  lease_id        text NOT NULL,
  leased_until_ms bigint,
  deliveries      bigint NOT NULL
);
CREATE UNIQUE INDEX consumer_sessions_by_tree ON llm_proxy.consumer_sessions (tree, consumer);
CREATE INDEX consumer_sessions_by_lease ON llm_proxy.consumer_sessions (consumer, lease_id);
CREATE INDEX sessions_by_end ON llm_proxy.sessions (ended_at_ms, tree) WHERE status = 'completed';
`

/**
 * The search index. When a turn ends, the commit only adds its id to `unsearched`, at almost no cost; an indexer
 * processes these rows. Without pg_trgm, or if the role may not install it, the search scans all of `searched`.
 */
const SEARCH = `
CREATE UNIQUE INDEX sessions_by_tree ON llm_proxy.sessions (tree);
-- What turns say, in lower case.
CREATE TABLE llm_proxy.searched (
  id     bigint PRIMARY KEY REFERENCES llm_proxy.turns (id) ON DELETE CASCADE,
  folded text NOT NULL
);
-- Turns that have ended and are not in it yet.
CREATE TABLE llm_proxy.unsearched (
  id bigint PRIMARY KEY
);
INSERT INTO llm_proxy.unsearched SELECT id FROM llm_proxy.turns WHERE status <> 'open';
CREATE FUNCTION llm_proxy.note_unsearched() RETURNS trigger LANGUAGE plpgsql AS $note$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO llm_proxy.unsearched SELECT id FROM added WHERE status <> 'open' ON CONFLICT DO NOTHING;
  ELSE
    INSERT INTO llm_proxy.unsearched SELECT added.id FROM added JOIN before ON before.id = added.id
    WHERE before.status = 'open' AND added.status <> 'open' ON CONFLICT DO NOTHING;
  END IF;
  RETURN NULL;
END $note$;
CREATE TRIGGER turns_added AFTER INSERT ON llm_proxy.turns REFERENCING NEW TABLE AS added
  FOR EACH STATEMENT EXECUTE FUNCTION llm_proxy.note_unsearched();
CREATE TRIGGER turns_closed AFTER UPDATE ON llm_proxy.turns REFERENCING OLD TABLE AS before NEW TABLE AS added
  FOR EACH STATEMENT EXECUTE FUNCTION llm_proxy.note_unsearched();
DO $trigrams$
BEGIN
  CREATE EXTENSION IF NOT EXISTS pg_trgm;
  CREATE INDEX searched_trigrams ON llm_proxy.searched USING gin (folded gin_trgm_ops);
EXCEPTION WHEN OTHERS THEN
  RAISE WARNING 'searches will read every turn: %', SQLERRM;
END $trigrams$;
`

/** The oldest compatible version. Releases with this migration read it; earlier ones reject every newer schema. */
const SIDE_BY_SIDE = `
-- The oldest version whose llm-proxy may still use the tables as they are now.
ALTER TABLE llm_proxy.schema_version ADD COLUMN oldest bigint;
-- The version that the proxy was made for.
ALTER TABLE llm_proxy.proxies ADD COLUMN schema bigint;
`

const MARKS = 'ALTER TABLE llm_proxy.sessions ADD COLUMN marks text'

/**
 * The first secret of the nodes: two random UUIDs, 244 random bits. Nodes of the previous release do not read it, and
 * do not sign requests that they forward.
 */
const NODE_SECRET = `
INSERT INTO llm_proxy.controls
SELECT 'node_secrets', jsonb_build_array(gen_random_uuid()::text || gen_random_uuid()::text)::text,
  nextval('llm_proxy.control_changes')
ON CONFLICT (name) DO NOTHING
`

const IMPORTS = `
CREATE TABLE llm_proxy.imports (
  id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  kind          text NOT NULL,
  name          text COLLATE "C" NOT NULL,
  created_at_ms bigint NOT NULL
);
CREATE UNIQUE INDEX imports_by_name ON llm_proxy.imports (kind, name, created_at_ms);
`

const GROUPS = `
ALTER TABLE llm_proxy.consumer_sessions ADD COLUMN group_hash text;
CREATE INDEX consumer_sessions_by_group
  ON llm_proxy.consumer_sessions (consumer, group_hash, leased_until_ms, lease_id, tree)
  WHERE group_hash IS NOT NULL AND leased_until_ms IS NOT NULL;
`

const ROLLOUTS = `
-- The node that runs a rollout, or has its result.
CREATE TABLE llm_proxy.rollouts (
  hash  text PRIMARY KEY, -- Of its id.
  owner bigint NOT NULL   -- The lease of the node. When it has ended, the row has no meaning.
);
CREATE INDEX rollouts_by_owner ON llm_proxy.rollouts (owner);
`

const CONTINUE_RESPONSES = 'ALTER TABLE llm_proxy.sessions ADD COLUMN continue_responses bigint'

/**
 * The view with texts that jsonb rejects replaced: JSON may have U+0000 and lone surrogates, which JavaScript writes as
 * escapes.
 */
const UNICODE_ESCAPES = `
CREATE OR REPLACE VIEW llm_proxy.session_list AS
  SELECT session_id, status, to_timestamp(created_at_ms / 1000.0) AS created_at,
    to_timestamp(updated_at_ms / 1000.0) AS updated_at, to_timestamp(ended_at_ms / 1000.0) AS ended_at,
    ${toJsonb('metadata')} AS metadata, reward, ${toJsonb('reward_components')} AS reward_components, turn_count,
    failed_turns, inexact_turns, sampled_tokens
  FROM llm_proxy.sessions`

function toJsonb(column: string): string {
  return `regexp_replace(${column}, '\\\\u(0000|d[89a-f][0-9a-f]{2})', '\\\\ufffd', 'g')::jsonb`
}

export interface Migration {
  readonly sql: string
  /**
   * Whether the migration only adds objects that programs of the previous version need neither read nor write: nullable
   * columns or ones with a default, tables, indexes. Those programs continue to run beside newer ones.
   */
  readonly adds?: true
}

/**
 * Migration n leads from version n to n + 1. A released migration must not be edited, since existing databases have run
 * it.
 */
export const MIGRATIONS: readonly Migration[] = [
  { sql: FIRST_SCHEMA },
  { sql: REWARD_TURNS },
  { sql: LIMITS },
  { sql: MANY_PROXIES },
  { sql: CONSUMERS },
  { sql: SEARCH },
  { sql: SIDE_BY_SIDE },
  { sql: MARKS, adds: true },
  { sql: NODE_SECRET, adds: true },
  { sql: IMPORTS, adds: true },
  { sql: GROUPS, adds: true },
  { sql: ROLLOUTS, adds: true },
  { sql: CONTINUE_RESPONSES, adds: true },
  { sql: UNICODE_ESCAPES, adds: true },
]

export const SCHEMA_VERSION = MIGRATIONS.length
