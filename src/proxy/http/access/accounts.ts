/**
 * What each caller has under way: connections, calls, bodies on their way, and the memory of those that have come. All of
 * it is charged to the caller's account and given back when the response or the connection is closed. A limit that is
 * reached refuses the caller who reached it, by its name, and nobody else.
 */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { getHeapStatistics } from 'node:v8'
import type { FastifyRequest } from 'fastify'
import { ProxyError } from '../../../base/errors.ts'
import { hasBody } from '../transport/discard-body.ts'
import { onClose } from '../transport/on-close.ts'
import { getKeys } from './keyring.ts'

export interface AccountLimits {
  /** Of one agent's key; twice as many as its calls at least, so that there is always an idle one to close. Default: 256. */
  connections?: number
  /** Of one agent's key; each answer that a call asks for counts. Default: 128. */
  calls?: number
  /** Memory that the bodies of calls under way may take together. Default: half of what the heap may grow to. */
  memoryBytes?: number
  /** Of all bodies together that have begun and not ended; twice the limit on one at least. Default: 256 MiB. */
  arrivingBytes?: number
}

/** Of the memory, the part that the calls of one agent's key may take. */
const SHARE_OF_ONE_AGENT = 0.25

const AGENT_CALLS = 128
const AGENT_CONNECTIONS = 256
const ARRIVING_BYTES = 256 * 1024 * 1024

interface Account {
  readonly name: string
  /** Limits of one agent hold for it. */
  readonly isAgent: boolean
  /** Under way; of a caller without any nothing is kept but its connections. */
  requests: number
  /** Of each of an agent's connections the calls under way. That of the latest call is the last. */
  readonly connections: Map<Socket, number>
  calls: number
  memoryBytes: number
  arrivingBytes: number
  /** Bodies on their way, of each what has come. */
  readonly arriving: Map<IncomingMessage, number>
}

/** What one request has of its caller's account, until its response is closed. */
export class AccountUsage {
  readonly #accounts: Accounts
  readonly #account: Account
  #calls = 0
  #memoryBytes = 0
  #isClosed = false

  constructor(accounts: Accounts, account: Account, response: ServerResponse) {
    this.#accounts = accounts
    this.#account = account
    onClose(response, () => {
      this.#add(-this.#calls, -this.#memoryBytes)
      this.#isClosed = true
      account.requests -= 1
      accounts.tidy(account)
    })
  }

  /** Whose it is. */
  get account(): string {
    return this.#account.name
  }

  /** Counts more calls. @throws ProxyError `too_many_calls`; none of them is counted then */
  addCalls(count: number): void {
    if (this.#isClosed || count === 0) return
    const { calls } = this.#accounts.limits
    if (this.#account.isAgent && this.#account.calls + count > calls) {
      const message = `This agent may have ${calls} calls under way, and has too many; try again later`
      throw new ProxyError('too_many_calls', message, { retryAfterS: 1 })
    }
    this.#add(count, 0)
  }

  /**
   * Sets what the body takes in memory, of which there is more once it has been read.
   * @throws ProxyError `too_many_calls`, `queue_full`; what was counted before still is
   */
  setMemory(bytes: number): void {
    if (this.#isClosed) return
    const { memoryBytes: all } = this.#accounts.limits
    const othersOfAgent = this.#account.memoryBytes - this.#memoryBytes
    const others = this.#accounts.memoryBytes - this.#memoryBytes
    const isTooMuch = othersOfAgent > 0 && othersOfAgent + bytes > all * SHARE_OF_ONE_AGENT
    if (this.#account.isAgent && isTooMuch) {
      const message = 'The calls of this agent that are under way hold too much memory; try again later'
      throw new ProxyError('too_many_calls', message, { retryAfterS: 1 })
    }
    if (others > 0 && others + bytes > all) {
      const message = 'The calls that are under way hold too much memory; try again later'
      throw new ProxyError('queue_full', message, { retryAfterS: 1 })
    }
    this.#add(0, bytes - this.#memoryBytes)
  }

  /**
   * Counts a body that is about to be read. One that is refused has an `error` event, or is cut off where nobody listens to
   * that. Of one over the limit on one body, which is refused elsewhere, nothing is kept.
   */
  watch(request: IncomingMessage): void {
    this.#accounts.watch(this.#account, request)
  }

  #add(calls: number, memoryBytes: number): void {
    this.#calls += calls
    this.#account.calls += calls
    this.#memoryBytes += memoryBytes
    this.#account.memoryBytes += memoryBytes
    this.#accounts.memoryBytes += memoryBytes
  }
}

export class Accounts {
  readonly limits: Required<AccountLimits>
  readonly #bodyLimitBytes: number
  readonly #accounts = new Map<string, Account>()
  /** The agents that called over connections last. */
  readonly #owners = new Map<Socket, Account>()
  /** Of all callers. */
  memoryBytes = 0
  #arrivingBytes = 0

  /** @param bodyLimitBytes of one body */
  constructor(bodyLimitBytes: number, limits: AccountLimits = {}) {
    const { calls = AGENT_CALLS, connections = AGENT_CONNECTIONS, arrivingBytes = ARRIVING_BYTES } = limits
    this.#bodyLimitBytes = bodyLimitBytes
    this.limits = {
      calls,
      connections: Math.max(connections, 2 * calls),
      memoryBytes: limits.memoryBytes ?? Math.floor(getHeapStatistics().heap_size_limit / 2),
      arrivingBytes: Math.max(arrivingBytes, 2 * bodyLimitBytes),
    }
  }

  /** How many callers have something under way. */
  get count(): number {
    return this.#accounts.size
  }

  /** A request has come. Of the connections of an agent's key that are too many, one without a call is closed. */
  charge(
    name: string,
    isAgent: boolean,
    { socket }: IncomingMessage,
    response: ServerResponse,
  ): AccountUsage {
    const account = this.#accounts.get(name) ?? newAccount(name, isAgent)
    this.#accounts.set(name, account)
    account.requests += 1
    this.#connect(account, socket, response)
    return new AccountUsage(this, account, response)
  }

  /** A connection is counted with who called over it last: balancers use one for many. */
  #connect(account: Account, socket: Socket, response: ServerResponse): void {
    const owner = this.#owners.get(socket)
    if (owner !== account) this.#disconnect(socket)
    if (!account.isAgent) return
    if (owner === undefined) {
      socket.once('close', () => {
        this.#disconnect(socket)
        this.#owners.delete(socket)
      })
    }
    this.#owners.set(socket, account)
    const { connections } = account
    const calls = connections.get(socket)
    connections.delete(socket)
    connections.set(socket, (calls ?? 0) + 1)
    onClose(response, () => {
      const running = connections.get(socket)
      if (running !== undefined) connections.set(socket, running - 1)
    })
    if (connections.size > this.limits.connections) closeFirstIdle(connections)
  }

  #disconnect(socket: Socket): void {
    const owner = this.#owners.get(socket)
    owner?.connections.delete(socket)
    if (owner) this.tidy(owner)
  }

  watch(account: Account, request: IncomingMessage): void {
    if (!hasBody(request)) return
    account.arriving.set(request, 0)
    request.on('data', ({ length }: Buffer) => {
      const before = account.arriving.get(request)
      if (before === undefined) return
      account.arriving.set(request, before + length)
      account.arrivingBytes += length
      this.#arrivingBytes += length
      if (before + length > this.#bodyLimitBytes) this.#arrived(account, request)
      if (this.#arrivingBytes > this.limits.arrivingBytes) this.#refuseLargest()
    })
    for (const end of ['end', 'close']) request.once(end, () => this.#arrived(account, request))
  }

  /** Of the caller who has most on its way: others are not cut off for it. */
  #refuseLargest(): void {
    const most = largest(this.#accounts.values(), ({ arrivingBytes }) => arrivingBytes)
    const [request, bytes] = largest(most.arriving, ([, bytes]) => bytes)
    this.#arrived(most, request)
    const message = `Too much is being sent at once, and most of it by this caller: this body has ${bytes} bytes so far`
    // Nobody waits for a body that came with a GET, or after its refusal.
    if (request.listenerCount('error') === 0) request.destroy()
    else request.emit('error', new ProxyError('queue_full', message, { retryAfterS: 1 }))
  }

  #arrived(account: Account, request: IncomingMessage): void {
    const bytes = account.arriving.get(request) ?? 0
    account.arriving.delete(request)
    account.arrivingBytes -= bytes
    this.#arrivingBytes -= bytes
    this.tidy(account)
  }

  /** Of callers with nothing under way nothing is kept. */
  tidy({ name, requests, connections, arriving }: Account): void {
    if (requests + connections.size + arriving.size === 0) this.#accounts.delete(name)
  }
}

/**
 * Whose a request is: of an agent's key its session, else the session of the path; else where it comes from, and with what
 * key, for agents of an open proxy may name their session by it.
 */
export function getAccountName({ caller, params, headers, ip }: FastifyRequest): string {
  if (caller.is === 'agent') return `agent ${caller.sessionId}`
  const { sessionId } = params as { sessionId?: string }
  if (sessionId !== undefined) return `session ${sessionId}`
  const [key = ''] = caller.is === 'anyone' ? getKeys(headers) : []
  return `address ${ip} ${key}`
}

function newAccount(name: string, isAgent: boolean): Account {
  const nothing = { requests: 0, calls: 0, memoryBytes: 0, arrivingBytes: 0 }
  return { name, isAgent, ...nothing, connections: new Map(), arriving: new Map() }
}

function closeFirstIdle(connections: Map<Socket, number>): void {
  for (const [socket, calls] of connections) {
    if (calls > 0) continue
    connections.delete(socket)
    socket.destroy()
    return
  }
}

/** Of things of which there is one at least. */
function largest<Item>(items: Iterable<Item>, sizeOf: (item: Item) => number): Item {
  return [...items].reduce((most, each) => (sizeOf(each) > sizeOf(most) ? each : most))
}
