/** The parts of a server, each made of the options that concern it. */
import { readFileSync } from 'node:fs'
import { ProxyError } from './base/errors.ts'
import type { Logger } from './base/logger.ts'
import { openEngines } from './embedded/open-engines.ts'
import { parseRequestedDetails, type RequestedDetails, requestedOrNone } from './protocol/details/kinds.ts'
import { fallbackNote, fallsBack, isOpenDoor } from './proxy/config/notes.ts'
import type { ServeConfig } from './proxy/config/options/serve.ts'
import { checkEngines, openServer } from './proxy/engines/clients/open-servers.ts'
import type { Connect } from './proxy/engines/clients/wire/connection.ts'
import { EngineRegistry } from './proxy/engines/dispatch/engine-registry.ts'
import { createLocalBackend, type LocalBackend } from './proxy/engines/dispatch/local-backend.ts'
import type { Backend } from './proxy/engines/port/backend.ts'
import {
  COMPARED_CHATS,
  type ExpectedTokenizer,
  questionFor,
  TOKENIZER_TEXT,
} from './proxy/engines/port/expected-tokenizer.ts'
import type { Registry } from './proxy/engines/port/registry.ts'
import { Controls, SharedControls } from './proxy/http/operator/controls.ts'
import { type HealthPort, openHealthPort } from './proxy/http/operator/health/health-port.ts'
import type { HealthAnswer } from './proxy/http/operator/health/health-thread.ts'
import type { HttpServer, ServerOptions } from './proxy/http/server.ts'
import { PassOn } from './proxy/http/transport/pass-on.ts'
import { Metrics } from './proxy/metrics/metrics.ts'
import { createRelayBackend, type RelayBackend } from './proxy/relay/relay-backend.ts'
import { ChatPrompts } from './proxy/session/prompts/chat-prompts.ts'
import { wholePrompt } from './proxy/session/prompts/prompt-planner.ts'
import type { Prompts } from './proxy/session/prompts/prompts.ts'
import { TokenPrompts } from './proxy/session/prompts/token-prompts.ts'
import { Activity } from './proxy/session/state/activity.ts'
import { parseLimits } from './proxy/session/state/limits.ts'
import { Sessions } from './proxy/session/state/sessions.ts'
import { describeHeld, type HeldSweep } from './proxy/session/state/sweep-guard.ts'
import { AnnouncedWeights } from './proxy/session/turn/announced-weights.ts'
import { TurnRunner } from './proxy/session/turn/run-turn.ts'
import type { TurnStore } from './proxy/store/port/turn-store.ts'
import { isPostgresUrl, lookAtPostgres, openPostgresStore } from './proxy/store/postgres/open.ts'
import { openSqliteStore, type SpawnThread } from './proxy/store/sqlite/open.ts'
import { openPassingStore } from './proxy/store/sqlite/passing.ts'
import { openTokenModel, type TokenModel } from './proxy/tokens/model/token-model.ts'
import type { ParserChoice } from './proxy/tokens/parsers/choose-parser.ts'
import type { PromptFormatChoice } from './proxy/tokens/templates/prompt-format.ts'
import type { Tokenizer } from './proxy/tokens/tokenizer/tokenizer.ts'
import { openTracing } from './proxy/tracing/open.ts'
import { DriftMeter } from './proxy/verify/drift-meter.ts'
import { idleEngine } from './proxy/verify/idle-engine.ts'
import { modelOptionsOf } from './start-model.ts'
import type { Resolve } from './worker/proxy-addresses.ts'
import type { Dial } from './worker/proxy-connection.ts'

/** What a process does beyond itself. Default of each: what the operating system gives. */
export interface Outside {
  /** Listens for agents, trainers and workers. */
  listen?: (options: ServerOptions) => Promise<HttpServer>
  /** Opens sockets to engines. */
  connect?: Connect | undefined
  /** Opens WebSockets to proxies. */
  dial?: Dial
  /** Looks up the addresses of proxies. */
  resolve?: Resolve
  /** Starts the threads of the store. */
  spawn?: SpawnThread
  /** Opens the model of token mode, with the threads that render and tokenize. */
  openModel?: typeof openTokenModel
}

export interface ServerHooks {
  logger: Logger
  outside?: Outside
}

/** What answers calls, before anything listens. */
export type ServerParts = Awaited<ReturnType<typeof openParts>>

/**
 * Opens the database, reaches the engines. What is to be closed is deferred to `opened`.
 * @throws ProxyError `start_failed`, `store_failed` or `config_invalid`
 */
export async function openParts(
  config: ServeConfig,
  { logger, outside = {} }: ServerHooks,
  opened: AsyncDisposableStack,
) {
  const engineConfig = { ...config, connect: outside.connect }
  const metrics = opened.use(new Metrics())
  const tracing = await openTracing(process.env, logger)
  if (tracing) opened.defer(() => tracing.close())
  const ownStore = metrics.watchStore(await openStore(config, { metrics, logger }, outside))
  const store = tracing?.watchStore(ownStore) ?? ownStore
  opened.defer(() => store.close())
  const database = isPostgresUrl(config.db) ? await lookAtPostgres(config.db, config.durability) : undefined
  const model = await openModelOf(config, { opened, logger, openModel: outside.openModel })
  const expected = model && (await expectedTokenizer(config, model))
  const relay = config.mode === 'relay' ? openRelayBackend(config, logger, metrics, expected) : undefined
  const backend = relay ?? (await openLocalBackend(engineConfig, logger, metrics, expected))
  opened.defer(() => backend.close())
  const registry = 'engines' in backend ? engineRegistry(engineConfig, backend, logger) : backend
  const isFallback = () => 'engines' in backend && backend.engines.all().some(({ standIn }) => standIn)
  const activity = new Activity()
  const { prompts, tokenizer, markup } = await openPrompts(model, backend, store, logger)
  const sessions = openSessions(config, store, { backend, activity, logger, isFallback })
  const weights = new AnnouncedWeights()
  const drift =
    config.verifyShare > 0 ? openDriftMeter(config, backend, store, { logger, metrics }) : undefined
  const runner = new TurnRunner({
    sessions,
    backend: metrics.watchBackend(backend),
    prompts,
    store,
    logger,
    weights,
    record: recordOf(config),
    logprobsMode: config.logprobsMode,
    activity,
    retryGraceMs: config.retryGraceMs,
    editedCalls: config.editedCalls,
    ...(config.model !== undefined && { model: config.model }),
    ...(drift && { onTrainable: (turn) => drift.meter.offer(turn) }),
  })
  const sharing = shareControls(config, { store, backend, registry, weights, activity, logger }, opened)
  return {
    ...{ metrics, tracing, store, database, relay, backend, registry, isFallback, activity },
    ...{ prompts, tokenizer, markup, sessions, weights, drift, runner, ...sharing },
  }
}

async function openStore(
  { db, durability, searchIndex }: ServeConfig,
  { metrics, logger }: { metrics: Metrics; logger: Logger },
  { spawn }: Outside,
): Promise<TurnStore> {
  const hooks = {
    onCommit: (...commit: [number, number]) => metrics.committed(...commit),
    searchIndex,
    onIndexFailed: (err: Error) => logger.warn({ err }, 'the index of the search is not kept up to date'),
    spawn,
  }
  if (db === 'memory') return openPassingStore(hooks)
  if (isPostgresUrl(db)) return openPostgresStore({ url: db, durability, ...hooks })
  return openSqliteStore({ path: db, durability, ...hooks })
}

interface SharedParts {
  store: TurnStore
  backend: Backend
  registry: Registry
  weights: AnnouncedWeights
  activity: Activity
  logger: Logger
}

/** What admins set, and how requests come to sessions' owners, where the record is shared. */
function shareControls(
  { mode, tlsCert }: ServeConfig,
  { store: { shared }, registry, ...parts }: SharedParts,
  opened: AsyncDisposableStack,
) {
  if (shared === undefined) return { controls: new Controls(parts), passOn: undefined }
  const controls = new SharedControls({ shared, registry, ...parts })
  const passOn = new PassOn(tlsCert && readFileSync(tlsCert, 'utf8'))
  opened.defer(() => passOn.close())
  return { controls, passOn, ...(mode === 'local' && { registry: controls }) }
}

export async function openHealth(
  { host, healthPort: port, basePath }: ServeConfig,
  health: () => Promise<HealthAnswer>,
): Promise<HealthPort | undefined> {
  return port === undefined ? undefined : await openHealthPort({ host, port, basePath, health })
}

interface SessionParts {
  backend: Backend
  activity: Activity
  logger: Logger
  /** Whether the embedded engine answers because no other one is there. */
  isFallback(): boolean
}

export function certificateFilesOf({ tlsCert: certPath, tlsKey: keyPath }: ServeConfig) {
  return certPath !== undefined && keyPath !== undefined ? { certificateFiles: { certPath, keyPath } } : {}
}

/** @throws ProxyError `config_invalid` */
function recordOf({ record }: ServeConfig): RequestedDetails | undefined {
  try {
    return requestedOrNone(parseRequestedDetails(record))
  } catch (error) {
    throw new ProxyError('config_invalid', `--record: ${(error as Error).message}`, { cause: error })
  }
}

function openSessions(
  config: ServeConfig,
  store: TurnStore,
  { backend, activity, logger, isFallback }: SessionParts,
): Sessions {
  const hooks = {
    onEnded: (sessionId: string) => backend.releaseSession(sessionId),
    onSweepFailed: (error: ProxyError) => logger.error({ err: error }, 'sweep failed'),
    onSweepHeld: (held: HeldSweep) => logger.warn({}, describeHeld(held)),
  }
  return new Sessions(store, hooks, {
    activity,
    strict: config.strictSessions,
    defaultTtlMs: config.sessionTtlMs || null,
    limits: parseLimits(config.sessionLimits ?? []),
    memoryBytes: config.sessionMemoryBytes,
    metadata: () => (isFallback() ? { llm_proxy_note: fallbackNote(config) } : {}),
  })
}

/** Asks the engine of its own, or one that serves nobody. */
function openDriftMeter(
  config: ServeConfig,
  backend: Backend | LocalBackend,
  store: TurnStore,
  { logger, metrics }: { logger: Logger; metrics: Metrics },
) {
  const { verifyShare: share, verifyEngineUrl: url } = config
  const own = url === undefined ? undefined : openServer(config, url)
  const meter = new DriftMeter({
    share,
    store,
    logger,
    onVerdict: (verdict, result) => metrics.verified(verdict, result?.comparison?.mean_difference),
    onControl: (isCaught) => metrics.controlTried(isCaught),
    engineFor: async (turn, signal) => {
      if (own) return { client: own, health: await own.checkHealth(signal) }
      return 'engines' in backend ? idleEngine(backend, turn) : undefined
    },
  })
  const close = async () => {
    await meter.close()
    await own?.close()
  }
  return { meter, close }
}

function openRelayBackend(
  config: ServeConfig,
  logger: Logger,
  metrics: Metrics,
  tokenizer: ExpectedTokenizer | undefined,
): RelayBackend {
  return createRelayBackend({
    logger,
    tokenizer,
    watch: metrics.dispatch,
    queueLimit: config.queueLimit,
    waitMs: config.queueWaitMs,
    pauseLimitMs: config.pauseLimitMs,
    callTimeoutMs: config.relayTimeoutMs,
    graceMs: config.workerGraceMs,
    heartbeatMs: config.heartbeatIntervalMs,
    v1MaxConcurrency: config.maxConcurrency,
  })
}

interface PromptsOpening {
  opened: AsyncDisposableStack
  logger: Logger
  openModel: Outside['openModel']
}

/** @returns undefined in chat mode */
async function openModelOf(
  config: ServeConfig,
  { opened, logger, openModel = openTokenModel }: PromptsOpening,
): Promise<TokenModel | undefined> {
  const options = modelOptionsOf(config)
  if (options === undefined) return undefined
  const model = await openModel(options)
  opened.defer(() => model.close())
  model.onTokenizerFault?.((fault) =>
    logger.error(fault, "The fast tokenizer is not used any more: Hugging Face's is, and exact."),
  )
  if (model.encodedBy === 'javascript')
    logger.warn(
      {},
      'There is no Rust tokenizer for this machine: the one in JavaScript is slower, and some text has other ids.',
    )
  if (model.unlistedFiles !== undefined)
    logger.warn(
      { files: model.unlistedFiles },
      "The hub's cache lacks files, and the hub cannot be asked for them: end tokens or images may be unknown.",
    )
  return model
}

async function openPrompts(
  model: TokenModel | undefined,
  backend: Backend,
  store: TurnStore,
  logger: Logger,
): Promise<{ prompts: Prompts; tokenizer?: Tokenizer; markup?: MarkupFacts }> {
  if (model === undefined) {
    return { prompts: new ChatPrompts((...asked) => backend.countTokens(...asked), store) }
  }
  const { members } = backend.status()
  if (members.length > 0 && !members.some((member) => member.takesTokenIds)) {
    throw new ProxyError(
      'start_failed',
      `token mode needs an engine that takes token ids, and ${members.map(({ name }) => name).join(', ')} does not: ` +
        'leave out --tokenizer, or use vLLM or SGLang',
    )
  }
  if (members.length > 0 && members.every((member) => member.tokenizer === 'other')) {
    const refused = members.map(({ name, error }) => `${name}: ${error}`).join('; ')
    throw new ProxyError('config_invalid', `${refused}; give --tokenizer the engine's own model`)
  }
  const reading = tellToolParser(model.parserChoice, logger)
  const writing = tellPromptFormat(model.promptFormat, logger)
  const servedLength = await servedLengthOf(model.contextLength, backend, logger)
  const markup = { tool_parser: reading, prompt_format: writing, context_length: model.contextLength }
  return { prompts: new TokenPrompts({ ...model, servedLength }, store), tokenizer: model.tokenizer, markup }
}

/**
 * Servers are often given less memory than config.json's length takes (`--max-model-len` of vLLM).
 * @param length of the model; undefined: its files do not say
 * @returns the longest that is served; undefined: no engine says
 */
async function servedLengthOf(
  length: number | undefined,
  backend: Backend,
  logger: Logger,
): Promise<number | undefined> {
  const served = (await backend.models()).flatMap(({ maxModelLen }) => maxModelLen ?? [])
  const least = Math.min(...served)
  const most = served.length === 0 ? undefined : Math.max(...served)
  if (length === undefined || least >= length) return most
  const message =
    `The engine serves ${least} tokens of context, and the model has ${length}: limits are cut to the engine's, and ` +
    `longer prompts are refused by it. --context-length ${least} refuses them here.`
  logger.warn({}, message)
  return most
}

/** How prompts are written and answers are read, for `/health`. */
interface MarkupFacts {
  tool_parser: ToolParserFacts
  prompt_format: PromptFormatFacts
  /** Tokens of prompt and completion together; undefined: the model's files do not say. */
  context_length: number | undefined
}

interface PromptFormatFacts {
  name: string
  chosen_by: 'name' | 'template'
  evidence: readonly string[]
}

function tellPromptFormat(
  { name, chosenBy, evidence }: PromptFormatChoice,
  logger: Logger,
): PromptFormatFacts {
  const facts = { name, chosen_by: chosenBy, evidence }
  logger.info({ prompt_format: facts }, 'prompt format chosen')
  return facts
}

interface ToolParserFacts {
  name: string
  chosen_by: ParserChoice['chosenBy']
  /** Texts of the chat template that speak for it. */
  evidence: readonly string[]
  warning?: string
}

function tellToolParser(choice: ParserChoice, logger: Logger): ToolParserFacts {
  const { family, chosenBy, evidence, warning } = choice
  const name = chosenBy === 'response_template' ? chosenBy : family.name
  const facts = { name, chosen_by: chosenBy, evidence, ...(warning && { warning }) }
  if (warning === undefined) logger.info({ tool_parser: facts }, 'tool parser chosen')
  else logger.warn({ tool_parser: facts }, warning)
  return facts
}

/** The options of `serve` with the port that no option is. */
type LocalModeConfig = ServeConfig & Pick<Outside, 'connect'>

async function openLocalBackend(
  config: LocalModeConfig,
  logger: Logger,
  metrics: Metrics,
  tokenizer: ExpectedTokenizer | undefined,
): Promise<LocalBackend> {
  const clients = config.awaitEngines ? [] : openEngines(config)
  return createLocalBackend({
    clients,
    known: await checkEngines(clients, logger, tokenizer && questionFor(tokenizer)),
    tokenizer,
    standIns: fallsBack(config),
    maxConcurrencyPerEngine: config.maxConcurrency,
    queueLimit: config.queueLimit,
    waitMs: config.queueWaitMs,
    pauseLimitMs: config.pauseLimitMs,
    healthIntervalMs: config.healthIntervalMs,
    logger,
    watch: metrics.dispatch,
  })
}

async function expectedTokenizer({ tokenizer }: ServeConfig, model: TokenModel): Promise<ExpectedTokenizer> {
  const { tokenizer: own } = model
  const decode = (ids: readonly number[]) => own.decode(ids)
  const chatIds = await comparedPrompts(model)
  return { name: tokenizer!, ids: own.encode(TOKENIZER_TEXT), chatIds, decode }
}

/** A template may refuse tools, or such a chat: that one is not compared then. */
async function comparedPrompts(model: TokenModel): Promise<ExpectedTokenizer['chatIds']> {
  const prompts = await Promise.all(
    Object.entries(COMPARED_CHATS).map(async ([name, chat]) => {
      const prompt = await wholePrompt(model, chat).catch(() => undefined)
      return prompt && [name, [...prompt.ids]]
    }),
  )
  return Object.fromEntries(prompts.filter((prompt) => prompt !== undefined))
}

function engineRegistry(config: LocalModeConfig, backend: LocalBackend, logger: Logger): Registry {
  return new EngineRegistry({
    backend,
    // Anybody may name an engine then, and must not be sent the key of the others.
    open: (url) => openServer(isOpenDoor(config) ? { ...config, engineApiKey: undefined } : config, url),
    needsTokenIds: config.tokenizer !== undefined,
    logger,
  })
}
