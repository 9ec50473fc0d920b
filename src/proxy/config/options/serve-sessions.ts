/** Options of recording and sessions. */
import { grouped } from '../option.ts'
import { db } from './shared.ts'

export const sessions = grouped('Sessions', {
  db: {
    ...db,
    help: 'Database: a file, or postgres://…; memory: one that ends with the process',
  },
  durability: {
    flag: 'durability',
    hidden: true,
    type: 'enum',
    values: ['power', 'process'],
    default: 'power',
    help: 'What a recorded turn survives: power, a power loss of the machine; process, the death of the proxy',
  },
  searchIndex: {
    flag: 'search-index',
    hidden: true,
    type: 'boolean',
    default: 'true',
    help: 'Keep an index of what was said and sampled, from the first search on; without it each search looks at every turn',
  },
  nodeUrl: {
    flag: 'node-url',
    hidden: true,
    type: 'url',
    help: 'Where other proxies on the same PostgreSQL database reach this one. Default: its own address',
  },
  sessionTtlMs: {
    flag: 'session-ttl',
    type: 'duration',
    max: '3650d',
    default: '0',
    help: 'Sessions are deleted this long after their last change; 0: never',
  },
  sessionLimits: {
    flag: 'session-limit',
    hidden: true,
    type: 'text',
    repeatable: true,
    help:
      'Budget of each session that names none: turns=50, sampled_tokens=, prompt_tokens=, seconds= or ' +
      'context_tokens=; may be given several times. With at_limit=error agents get an error there, else an ordinary end',
  },
  sessionMemoryBytes: {
    flag: 'session-memory',
    hidden: true,
    type: 'bytes',
    min: '1MiB',
    default: '512MiB',
    help:
      'Memory for the calls of active sessions; above it, those that called longest ago are read ' +
      'from the database at their next call',
  },
  record: {
    flag: 'record',
    type: 'text',
    repeatable: true,
    help:
      'Details to record beyond ids and logprobs, if the engine gives them: sampling_mask, top_logprobs:20, ' +
      'prompt_logprobs, routed_experts, weight_versions; a session may choose its own',
  },
  editedCalls: {
    flag: 'edited-calls',
    hidden: true,
    type: 'enum',
    values: ['auto', 'keep', 'branch'],
    default: 'auto',
    help:
      'Tool calls that an agent sends back changed: `keep` takes them for what was sampled, ' +
      '`branch` begins a new row, `auto` does so only where most was cut away',
  },
  turnMessages: {
    flag: 'turn-messages',
    hidden: true,
    type: 'enum',
    values: ['all', 'new'],
    default: 'all',
    help:
      'What GET /sessions/{id} shows of the messages of a turn, if the query does not say: all, or those that are ' +
      'new in it, as the loop of alibaba/verl-recipe takes them',
  },
  logprobsMode: {
    flag: 'logprobs-mode',
    hidden: true,
    type: 'text',
    help:
      "Which distribution the engines' logprobs belong to, where it cannot be measured: raw_logprobs, " +
      'temperature_logprobs, processed_logprobs, or any other word',
  },
  stripVolatile: {
    flag: 'strip-volatile',
    hidden: true,
    type: 'boolean',
    default: 'true',
    help:
      "Remove from prompts what an agent changes with each call, such as Claude Code's " +
      'billing header; the turn shows what was removed',
  },
  strictSessions: {
    flag: 'strict-sessions',
    type: 'boolean',
    default: 'false',
    help: 'Answer 404 to calls of a session that was not created, instead of creating it',
  },
})
