import type { Test } from 'tap'
import type { TSchema } from 'typebox'
import { Compile } from 'typebox/compile'
import { uiRoutes } from '../../src/inspector/routes/routes.ts'
import type { MemberRegistry } from '../../src/proxy/engines/port/registry.ts'
import { type HttpServer, listen, type ServerOptions } from '../../src/proxy/http/server.ts'
import { ProxyMetrics } from '../../src/proxy/metrics/proxy-metrics.ts'
import { Activity } from '../../src/proxy/session/state/activity.ts'
import { Sessions, type SessionsOptions } from '../../src/proxy/session/state/sessions.ts'
import { TurnRunner } from '../../src/proxy/session/turn/run-turn.ts'
import { WeightAnnouncement } from '../../src/proxy/session/turn/weight-announcement.ts'
import type { OpenTurn, TurnOutcome, TurnStore } from '../../src/proxy/store/port/turn-store.ts'
import { addMessageTexts } from './messages.ts'
import { startWatched } from './no-stalls.ts'
import { type OutcomeFields, toPromptIds } from './prompt-ids.ts'
import { ScriptedBackend } from './scripted-backend.ts'
import { silentLogger } from './silent-logger.ts'
import { openMemoryStore } from './store-in-process.ts'

// biome-ignore lint/suspicious/noExplicitAny: tests inspect responses of any shape
type Json = any

export interface SessionsApi {
  url: string
  routes: HttpServer['routes']
  store: TurnStore
  sessions: Sessions
  backend: ScriptedBackend
  /**
   * Sends a request.
   * @param body a text is sent unchanged, anything else as JSON
   */
  call(method: string, path: string, body?: unknown): Promise<{ status: number; body: Json }>
}

/** Starts the HTTP server over this store, on a free port, until the test ends. */
export async function startSessionsApi(
  t: Test,
  existingStore?: TurnStore,
  options: Partial<SessionsOptions> = {},
  server: Partial<ServerOptions> = {},
): Promise<SessionsApi> {
  const store = existingStore ?? (await openMemoryStore())
  const parts = createServerParts(store, options)
  const { sessions, backend } = parts
  const http = await startWatched(() => listen({ ...parts.options, ...server }))
  t.teardown(async () => {
    await sessions.close()
    await http.close()
    await store.close()
  })
  const { url, routes } = http
  return { url, routes, store, sessions, backend, call: (...request) => callApi(url, ...request) }
}

/** Creates the parts of the HTTP server, with a backend that the test scripts. */
export function createServerParts(store: TurnStore, options: Partial<SessionsOptions> = {}) {
  const backend = new ScriptedBackend()
  const hooks = {
    onEnded: (id: string) => backend.releaseSession(id),
    onSweepFailed() {},
    onSweepDeferred() {},
  }
  const activity = options.activity ?? new Activity()
  const sessions = new Sessions(store, hooks, { strict: false, defaultTtlMs: null, ...options, activity })
  const runner = new TurnRunner({ sessions, backend, store, activity, logger: silentLogger })
  const serverOptions: ServerOptions = {
    host: '127.0.0.1',
    port: 0,
    sessions,
    store,
    runner,
    backend,
    logger: silentLogger,
    bodyLimitBytes: 1_000_000,
    getHealthFields: () => ({}),
    weights: new WeightAnnouncement(),
    activity,
    metrics: new ProxyMetrics().createSource({ backend, prompts: { getCounts: () => ({}) }, store }),
    acceptWorker: (socket) => socket.close(),
    maxWorkerFrameBytes: 1_000,
    registry: NO_REGISTRY,
    inspector: uiRoutes,
  }
  return { options: serverOptions, sessions, backend }
}

const NO_REGISTRY: MemberRegistry = {
  list: () => [],
  register: () => Promise.reject(new Error('no engines here')),
  remove() {},
}

async function callApi(url: string, method: string, path: string, body?: unknown) {
  const text = body === undefined || typeof body === 'string' ? body : JSON.stringify(body)
  const response = await fetch(url + path, { method, ...(text !== undefined && { body: text }) })
  return { status: response.status, body: await response.json() }
}

/** The facts of a turn, with its messages as texts. */
type TurnFacts = Omit<OpenTurn, 'lastMessage'> &
  Required<Omit<OutcomeFields, 'details' | 'epoch'>> &
  Pick<OutcomeFields, 'details'> & { requestMessages: readonly string[] }

/** Default values of a turn, for what a test does not specify. */
export const DEFAULT_TURN: Omit<TurnFacts, 'turnId' | 'sessionId' | 'index'> = {
  dialect: 'chat',
  startedAtMs: 1_000,
  requestMessages: ['{"role":"user","content":"hi"}'],
  tools: null,
  params: '{"model":"m"}',
  promptPieces: [],
  retryCount: 0,
  status: 'completed',
  endedAtMs: 1_500,
  firstTokenAtMs: 1_250,
  model: 'm',
  engine: 'e',
  completionText: 'hello',
  reasoning: null,
  toolCalls: '[]',
  finishReason: 'stop',
  stopReason: null,
  promptTokenIds: Int32Array.of(1, 2),
  completionTokenIds: Int32Array.of(3),
  completionLogprobs: Float64Array.of(-0.5),
  exact: true,
  inexactReason: null,
  weightVersionStart: null,
  weightVersionEnd: null,
  annotations: '{}',
  usage: null,
  error: null,
}

/** Records a turn as a request would. Arrays are copied, because the store takes ownership of them. */
export async function recordTurn(
  store: TurnStore,
  sessionId: string,
  index: number,
  facts: Partial<TurnFacts> = {},
): Promise<void> {
  const turn = { ...DEFAULT_TURN, sessionId, index, turnId: `${sessionId}-${index}`, ...facts }
  const { requestMessages, ...open } = pick(turn, OPEN_FIELDS)
  // Concurrent, as in a request: the store defers an opening without a close for some milliseconds.
  const opened = store.openTurn({ ...open, lastMessage: addMessageTexts(requestMessages) })
  const closed = store.closeTurn({
    ...(omit(turn, OPEN_FIELDS) as TurnOutcome),
    turnId: turn.turnId,
    sessionId,
    promptTokenIds: toPromptIds(turn.promptTokenIds),
    completionTokenIds: turn.completionTokenIds.slice(),
    completionLogprobs: turn.completionLogprobs.slice(),
  })
  await Promise.all([opened, closed])
}

const OPEN_FIELDS = [
  'turnId',
  'sessionId',
  'index',
  'dialect',
  'startedAtMs',
  'requestMessages',
  'tools',
  'params',
  'promptPieces',
  'retryCount',
] as const

function pick<T, K extends keyof T>(value: T, keys: readonly K[]): Pick<T, K> {
  return Object.fromEntries(keys.map((key) => [key, value[key]])) as Pick<T, K>
}

function omit<T extends object>(value: T, keys: readonly string[]): Partial<T> {
  return Object.fromEntries(Object.entries(value).filter(([key]) => !keys.includes(key))) as Partial<T>
}

/**
 * Validates a value against a schema.
 * @returns the violations; empty if it is valid
 */
export function findSchemaErrors(schema: TSchema, value: unknown): string[] {
  return Compile(schema)
    .Errors(value)
    .map((error) => `${error.instancePath} ${error.message}`)
}
