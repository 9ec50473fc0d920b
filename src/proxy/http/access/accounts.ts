/**
 * Quotas per caller: connections, requests in flight, bodies in transit, and memory of received bodies. Resources are
 * charged to the caller's account and released when the response or the connection closes. A request that exceeds a
 * limit of its account, or the limit on the memory of all bodies, is rejected. If too many bytes of bodies are in
 * transit, the largest body of the caller with the most such bytes is rejected.
 */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { getHeapStatistics } from 'node:v8'
import type { FastifyRequest } from 'fastify'
import { ProxyError } from '../../../base/errors.ts'
import { hasBody } from '../transport/discard-body.ts'
import { runOnClose } from '../transport/on-close.ts'
import { getKeys } from './keyring.ts'

/** The limits per caller and in total. */
export interface AccountLimits {
  /**
   * The maximum number of connections per agent key. A value below twice the limit on completions is raised to that, so
   * that there is always an idle connection to close. Default: 256.
   */
  connections?: number
  /**
   * The maximum number of requests in flight per agent key; a request for several completions (`n`) counts several
   * times. Default: 128.
   */
  completions?: number
  /** The memory that the bodies of all requests in flight may occupy. Default: half of the maximum heap size. */
  memoryBytes?: number
  /**
   * The maximum number of received bytes of all bodies in transit. A value below twice the limit on one body is raised
   * to that. Default: 256 MiB.
   */
  arrivingBytes?: number
}

/**
 * The share of `memoryBytes` that several requests of one agent key may occupy together; a single request may exceed
 * it.
 */
const SHARE_OF_ONE_AGENT = 0.25

const AGENT_COMPLETIONS = 128
const AGENT_CONNECTIONS = 256
const ARRIVING_BYTES = 256 * 1024 * 1024

/** The resources in use by one caller. */
interface Account {
  readonly name: string
  /** Whether the limits per agent key apply. */
  readonly isAgent: boolean
  /** The number of requests in flight. An account without requests, connections and bodies is removed. */
  requests: number
  /** The number of requests in flight by connection of an agent, in the order of their latest requests. */
  readonly connections: Map<Socket, number>
  /** The number of completions that the requests in flight ask for. */
  completions: number
  memoryBytes: number
  arrivingBytes: number
  /** The bodies in transit, with the bytes received so far. */
  readonly arriving: Map<IncomingMessage, number>
}

/** The resources that one request has charged to its caller's account; released when its response is closed. */
export class AccountUsage {
  readonly #accounts: Accounts
  readonly #account: Account
  #completions = 0
  #memoryBytes = 0
  #isClosed = false

  constructor(accounts: Accounts, account: Account, response: ServerResponse) {
    this.#accounts = accounts
    this.#account = account
    runOnClose(response, () => {
      this.#add(-this.#completions, -this.#memoryBytes)
      this.#isClosed = true
      account.requests -= 1
      accounts.removeIfUnused(account)
    })
  }

  /** The name of the account. */
  get account(): string {
    return this.#account.name
  }

  /** Charges further completions of the request. @throws ProxyError `too_many_calls`; none is charged then */
  addCompletions(count: number): void {
    if (this.#isClosed || count === 0) return
    const { completions } = this.#accounts.limits
    if (this.#account.isAgent && this.#account.completions + count > completions) {
      const message = `This agent has too many requests in flight (at most ${completions}); try again later`
      throw new ProxyError('too_many_calls', message, { retryAfterS: 1 })
    }
    this.#add(count, 0)
  }

  /**
   * Sets the memory that the body occupies, which grows once the body has been parsed.
   * @throws ProxyError `too_many_calls`, `queue_full`; the previous figure stays charged then
   */
  setMemory(bytes: number): void {
    if (this.#isClosed) return
    const { memoryBytes: all } = this.#accounts.limits
    const othersOfAgent = this.#account.memoryBytes - this.#memoryBytes
    const others = this.#accounts.memoryBytes - this.#memoryBytes
    const isTooMuch = othersOfAgent > 0 && othersOfAgent + bytes > all * SHARE_OF_ONE_AGENT
    if (this.#account.isAgent && isTooMuch) {
      const message = 'The requests in flight of this agent use too much memory; try again later'
      throw new ProxyError('too_many_calls', message, { retryAfterS: 1 })
    }
    if (others > 0 && others + bytes > all) {
      const message = 'The requests in flight use too much memory; try again later'
      throw new ProxyError('queue_full', message, { retryAfterS: 1 })
    }
    this.#add(0, bytes - this.#memoryBytes)
  }

  /**
   * Charges the bytes of a body as they arrive. If the body is rejected, `request` emits `error`, or is destroyed if it
   * has no listener for it. A body above the limit on one body is rejected elsewhere and no longer charged.
   */
  watch(request: IncomingMessage): void {
    this.#accounts.watch(this.#account, request)
  }

  #add(completions: number, memoryBytes: number): void {
    this.#completions += completions
    this.#account.completions += completions
    this.#memoryBytes += memoryBytes
    this.#account.memoryBytes += memoryBytes
    this.#accounts.memoryBytes += memoryBytes
  }
}

/** The accounts of all callers, and the sums that the shared limits restrict. */
export class Accounts {
  readonly limits: Required<AccountLimits>
  readonly #bodyLimitBytes: number
  readonly #accounts = new Map<string, Account>()
  /** The account that last used each connection of an agent. */
  readonly #owners = new Map<Socket, Account>()
  /** The memory of the bodies of all callers. */
  memoryBytes = 0
  #arrivingBytes = 0

  /** @param bodyLimitBytes the maximum size of one body */
  constructor(bodyLimitBytes: number, limits: AccountLimits = {}) {
    const {
      completions = AGENT_COMPLETIONS,
      connections = AGENT_CONNECTIONS,
      arrivingBytes = ARRIVING_BYTES,
    } = limits
    this.#bodyLimitBytes = bodyLimitBytes
    this.limits = {
      completions,
      connections: Math.max(connections, 2 * completions),
      memoryBytes: limits.memoryBytes ?? Math.floor(getHeapStatistics().heap_size_limit / 2),
      arrivingBytes: Math.max(arrivingBytes, 2 * bodyLimitBytes),
    }
  }

  /** The number of callers with resources in use. */
  get count(): number {
    return this.#accounts.size
  }

  /** Charges a request to an account. If an agent key has too many connections, an idle one is closed. */
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

  /** Charges the connection to the agent that used it last: load balancers use one connection for many agents. */
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
    const running = connections.get(socket)
    connections.delete(socket)
    connections.set(socket, (running ?? 0) + 1)
    runOnClose(response, () => {
      const current = connections.get(socket)
      if (current !== undefined) connections.set(socket, current - 1)
    })
    if (connections.size > this.limits.connections) closeFirstIdle(connections)
  }

  #disconnect(socket: Socket): void {
    const owner = this.#owners.get(socket)
    owner?.connections.delete(socket)
    if (owner) this.removeIfUnused(owner)
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
      if (this.#arrivingBytes > this.limits.arrivingBytes) this.#rejectLargest()
    })
    for (const end of ['end', 'close']) request.on(end, () => this.#arrived(account, request))
  }

  /** Rejects the largest body of the caller with the most bytes in transit, so that other callers are not affected. */
  #rejectLargest(): void {
    const most = findLargest(this.#accounts.values(), ({ arrivingBytes }) => arrivingBytes)
    const [request, bytes] = findLargest(most.arriving, ([, bytes]) => bytes)
    this.#arrived(most, request)
    const message = `Too many bytes of request bodies are in transit, and this caller has the most: this body has ${bytes} bytes so far`
    // The body of a GET, or of a request that was rejected, has no reader.
    if (request.listenerCount('error') === 0) request.destroy()
    else request.emit('error', new ProxyError('queue_full', message, { retryAfterS: 1 }))
  }

  #arrived(account: Account, request: IncomingMessage): void {
    const bytes = account.arriving.get(request) ?? 0
    account.arriving.delete(request)
    account.arrivingBytes -= bytes
    this.#arrivingBytes -= bytes
    this.removeIfUnused(account)
  }

  /** Removes an account without resources in use. */
  removeIfUnused({ name, requests, connections, arriving }: Account): void {
    if (requests + connections.size + arriving.size === 0) this.#accounts.delete(name)
  }
}

/**
 * Returns the name of the account to charge: the session of the agent key, else the session in the path, else the
 * client's address. On an open proxy the key is added to the address, because an agent may send its session id as key.
 */
export function getAccountName({ caller, params, headers, ip }: FastifyRequest): string {
  if (caller.is === 'agent') return `agent ${caller.sessionId}`
  const { sessionId } = params as { sessionId?: string }
  if (sessionId !== undefined) return `session ${sessionId}`
  const [key = ''] = caller.is === 'anyone' ? getKeys(headers) : []
  return `address ${ip} ${key}`
}

function newAccount(name: string, isAgent: boolean): Account {
  const empty = { requests: 0, completions: 0, memoryBytes: 0, arrivingBytes: 0 }
  return { name, isAgent, ...empty, connections: new Map(), arriving: new Map() }
}

function closeFirstIdle(connections: Map<Socket, number>): void {
  for (const [socket, running] of connections) {
    if (running > 0) continue
    connections.delete(socket)
    socket.destroy()
    return
  }
}

/** Returns the largest item. @param items at least one */
function findLargest<Item>(items: Iterable<Item>, getSize: (item: Item) => number): Item {
  return [...items].reduce((most, each) => (getSize(each) > getSize(most) ? each : most))
}
