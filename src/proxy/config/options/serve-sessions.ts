/** Options of recording and sessions. */
import { groupOptions } from '../option.ts'
import { db } from './shared.ts'

export const sessions = groupOptions('Sessions', {
  db: {
    ...db,
    help: 'Database: a file, or postgres://…; memory: discarded when the process ends',
  },
  durability: {
    flag: 'durability',
    hidden: true,
    type: 'enum',
    values: ['power', 'process'],
    default: 'power',
    help: 'Failure that recorded turns survive: power, a power loss of the machine; process, a crash of the proxy',
  },
  searchIndex: {
    flag: 'search-index',
    hidden: true,
    type: 'boolean',
    default: 'true',
    help: 'Maintain an index of the text of turns, from the first search on; without it each search reads every turn',
  },
  nodeUrl: {
    flag: 'node-url',
    hidden: true,
    type: 'url',
    help: 'URL at which other nodes of the same PostgreSQL database reach this one. Default: its own address',
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
      'Default budget of a session: turns=50, sampled_tokens=, prompt_tokens=, seconds= or context_tokens=; ' +
      'may be given several times. With at_limit=error, requests beyond it get an error, else an ordinary end',
  },
  sessionMemoryBytes: {
    flag: 'session-memory',
    hidden: true,
    type: 'bytes',
    min: '1MiB',
    default: '512MiB',
    help:
      'Memory for the caches of active sessions; above it, the least recently used are read ' +
      'from the database at their next request',
  },
  record: {
    flag: 'record',
    type: 'text',
    repeatable: true,
    help:
      'Details to record beyond ids and logprobs, if the engine reports them: sampling_mask, top_logprobs:20, ' +
      'prompt_logprobs, routed_experts, weight_versions; a session may choose its own',
  },
  editedCalls: {
    flag: 'edited-calls',
    hidden: true,
    type: 'enum',
    values: ['auto', 'keep', 'branch'],
    default: 'auto',
    help:
      'How to handle tool calls that an agent sends back changed: `keep` treats them as sampled, ' +
      '`branch` begins a new row, `auto` begins one only if a large part was removed',
  },
  continueResponses: {
    flag: 'continue-responses',
    hidden: true,
    type: 'boolean',
    default: 'false',
    help:
      'Token mode: request the rest of a response whose engine request was cut by a weight update or a lost engine; ' +
      'the turn lists its engine requests',
  },
  turnMessages: {
    flag: 'turn-messages',
    hidden: true,
    type: 'enum',
    values: ['all', 'new'],
    default: 'all',
    help:
      'Messages of a turn that GET /sessions/{id} returns by default: all, or those that are ' +
      'new in it, as the loop of alibaba/verl-recipe requires',
  },
  logprobsMode: {
    flag: 'logprobs-mode',
    hidden: true,
    type: 'text',
    help:
      "Distribution of the engines' logprobs, if it cannot be measured: raw_logprobs, " +
      'temperature_logprobs, processed_logprobs, or any other name',
  },
  stripVolatile: {
    flag: 'strip-volatile',
    hidden: true,
    type: 'boolean',
    default: 'true',
    help:
      "Remove text from prompts that an agent changes with each request, such as Claude Code's " +
      'billing header; the turn records the removed text',
  },
  strictSessions: {
    flag: 'strict-sessions',
    type: 'boolean',
    default: 'false',
    help: 'Respond with 404 to requests of a session that was not created, instead of creating it',
  },
})
