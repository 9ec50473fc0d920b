/**
 * Sockets in memory that behave like TCP: data arrives in order, delayed, and in arbitrary chunks; a reader that does
 * not read blocks its writer; a machine that dies resets its connections, or leaves them half open.
 */
import { Duplex } from 'node:stream'
import { Machine } from './machine.ts'
import type { VirtualTime } from './virtual-time.ts'

/** The number of bytes by which a writer may be ahead of its reader. */
const WINDOW_BYTES = 64 * 1024

export interface Address {
  host: string
  port: number
}

/** An object that accepts connections, such as a server of `node:http`. */
export interface Listener {
  emit(event: 'connection', socket: SimSocket): unknown
}

interface Server {
  machine: Machine
  listener: Listener
}

export class Network {
  readonly time: VirtualTime
  readonly random: () => number
  readonly #servers = new Map<string, Server>()
  readonly #links = new Set<Link>()
  #lastPort = 40_000

  constructor(time: VirtualTime, random: () => number) {
    this.time = time
    this.random = random
  }

  /** Open connections, including half-open ones. */
  get links(): readonly Link[] {
    return [...this.#links]
  }

  /** @returns a function that stops listening; connections stay open */
  listen({ host, port }: Address, listener: Listener): () => void {
    const key = `${host}:${port}`
    const machine = Machine.current!
    const server = { machine, listener }
    if (this.#servers.get(key)?.machine.isDead === false) throw new Error(`EADDRINUSE ${key}`)
    this.#servers.set(key, server)
    return () => {
      if (this.#servers.get(key) === server) this.#servers.delete(key)
    }
  }

  /** Returns a socket that is connecting: it emits `connect` or an error later. */
  connect({ host, port }: Address): SimSocket {
    this.#lastPort += 1
    const machine = Machine.current!
    const client = new SimSocket(
      machine,
      { address: host, port },
      { address: machine.name, port: this.#lastPort },
    )
    const server = this.#servers.get(`${host}:${port}`)
    this.time.after(
      this.drawLatencyMs(),
      () => {
        if (client.destroyed) return
        const target = this.#servers.get(`${host}:${port}`)
        if (target === undefined || target.machine.isDead || target !== server) {
          const error = Object.assign(new Error(`connect ECONNREFUSED ${host}:${port}`), {
            code: 'ECONNREFUSED',
          })
          client.destroy(error)
          return
        }
        const accepted = target.machine.run(() => new SimSocket(target.machine, client.local, client.remote))
        const link = new Link(this, client, accepted)
        this.#links.add(link)
        target.machine.run(() => target.listener.emit('connection', accepted))
        accepted.onConnected(link)
        client.onConnected(link)
      },
      machine,
    )
    return client
  }

  /** Draws the latency of a chunk. */
  drawLatencyMs(): number {
    return 0.1 + 2 * this.random()
  }

  remove(link: Link): void {
    this.#links.delete(link)
  }
}

interface Endpoint {
  address: string
  port: number
}

/** Data in transit: bytes, the end of the stream, or a reset. */
type Chunk = Buffer | 'end' | 'reset'

export class SimSocket extends Duplex {
  readonly machine: Machine
  readonly remote: Endpoint
  readonly local: Endpoint
  #link: Link | undefined
  #pendingWrite: { chunk: Buffer | undefined; callback: () => void } | undefined
  #timeout: NodeJS.Timeout | undefined
  #timeoutMs = 0

  constructor(machine: Machine, remote: Endpoint, local: Endpoint) {
    super({ allowHalfOpen: true, autoDestroy: true })
    this.machine = machine
    this.remote = remote
    this.local = local
  }

  get remoteAddress(): string {
    return this.remote.address
  }

  get remotePort(): number {
    return this.remote.port
  }

  get localAddress(): string {
    return this.local.address
  }

  get localPort(): number {
    return this.local.port
  }

  get connecting(): boolean {
    return this.#link === undefined && !this.destroyed
  }

  setNoDelay(): this {
    return this
  }

  setKeepAlive(): this {
    return this
  }

  ref(): this {
    return this
  }

  unref(): this {
    return this
  }

  setTimeout(ms: number, listener?: () => void): this {
    this.#timeoutMs = ms
    clearTimeout(this.#timeout)
    if (listener) this.once('timeout', listener)
    this.#touch()
    return this
  }

  destroySoon(): void {
    if (this.writable) this.end()
    if (this.writableFinished) this.destroy()
    else this.once('finish', () => this.destroy())
  }

  onConnected(link: Link): void {
    this.#link = link
    this.machine.run(() => {
      this.emit('connect')
      this.emit('ready')
      this.flush()
    })
  }

  /**
   * Receives data.
   * @returns false if further data must wait until `_read`
   */
  receive(chunk: Chunk): boolean {
    if (this.destroyed || this.machine.isDead) return true
    return this.machine.run(() => {
      this.#touch()
      if (chunk === 'end') return this.push(null)
      if (chunk !== 'reset') return this.push(chunk)
      this.destroy(Object.assign(new Error('read ECONNRESET'), { code: 'ECONNRESET' }))
      return true
    })
  }

  /** Sends the pending chunk, if there is room. */
  flush(): void {
    const pending = this.#pendingWrite
    if (pending === undefined || this.#link === undefined) return
    this.#pendingWrite = undefined
    this.machine.run(() => this.#send(pending.chunk, pending.callback))
  }

  override _read(): void {
    this.#link?.resume(this)
  }

  override _write(chunk: Buffer, _encoding: string, callback: () => void): void {
    this.#touch()
    this.#send(chunk, callback)
  }

  override _final(callback: () => void): void {
    this.#send(undefined, callback)
  }

  override _destroy(error: Error | null, callback: (error: Error | null) => void): void {
    clearTimeout(this.#timeout)
    this.#link?.onClosed(this, error !== null)
    callback(error)
  }

  #send(chunk: Buffer | undefined, callback: () => void): void {
    if (this.#link === undefined || !this.#link.hasRoom(this)) {
      this.#pendingWrite = { chunk, callback }
      return
    }
    this.#link.send(this, chunk ?? 'end')
    callback()
  }

  #touch(): void {
    clearTimeout(this.#timeout)
    if (this.#timeoutMs > 0) this.#timeout = setTimeout(() => this.emit('timeout'), this.#timeoutMs)
  }
}

interface Wire {
  readonly from: SimSocket
  readonly to: SimSocket
  readonly queue: { chunk: Chunk; atMs: number }[]
  lastAtMs: number
  bytes: number
  /** Whether the reader has stopped requesting data. */
  isFull: boolean
  isScheduled: boolean
  /** Whether the network drops all data. */
  isBlackholed: boolean
}

/** One connection. */
export class Link {
  readonly client: SimSocket
  readonly server: SimSocket
  readonly #network: Network
  readonly #wires: readonly [Wire, Wire]
  #delayedUntilMs = 0
  /** The bytes that remain until the fault of `cutAfter` occurs. */
  #cut: { bytes: number; how: 'reset' | 'blackholed' } | undefined

  constructor(network: Network, client: SimSocket, server: SimSocket) {
    this.#network = network
    this.client = client
    this.server = server
    this.#wires = [createWire(client, server), createWire(server, client)]
    for (const socket of [client, server]) socket.machine.onDeath(() => this.#onDeath(socket))
  }

  get isOver(): boolean {
    return this.client.destroyed && this.server.destroyed
  }

  get isHalfOpen(): boolean {
    return this.#wires.some(({ isBlackholed }) => isBlackholed)
  }

  hasRoom(from: SimSocket): boolean {
    return this.#wireFrom(from).bytes < WINDOW_BYTES
  }

  send(from: SimSocket, chunk: Chunk): void {
    const wire = this.#wireFrom(from)
    if (!Buffer.isBuffer(chunk)) {
      this.#put(wire, chunk)
      return
    }
    let rest = chunk
    if (this.#cut && rest.length >= this.#cut.bytes) {
      const { bytes, how } = this.#cut
      this.#cut = undefined
      this.#put(wire, rest.subarray(0, bytes))
      if (how === 'blackholed') this.blackhole()
      else this.reset()
      return
    }
    if (this.#cut) this.#cut.bytes -= rest.length
    // The data of one write may arrive in two chunks.
    if (rest.length > 1 && this.#network.random() < 0.1) {
      const index = 1 + Math.floor(this.#network.random() * (rest.length - 1))
      this.#put(wire, rest.subarray(0, index))
      rest = rest.subarray(index)
    }
    this.#put(wire, rest)
  }

  /** Called when the reader requests more data. */
  resume(reader: SimSocket): void {
    const wire = this.#wireTo(reader)
    if (!wire.isFull) return
    wire.isFull = false
    this.#schedule(wire)
  }

  /** Called when one side has closed its socket. */
  onClosed(socket: SimSocket, withError: boolean): void {
    const wire = this.#wireFrom(socket)
    this.#wireTo(socket).bytes = 0
    if (!socket.machine.isDead) this.#put(wire, withError ? 'reset' : 'end')
    if (this.isOver) this.#network.remove(this)
  }

  /** Resets the connection on both sides. */
  reset(): void {
    for (const wire of this.#wires) {
      wire.isBlackholed = false
      this.#put(wire, 'reset')
    }
  }

  /** Drops all further data without notifying either side. */
  blackhole(): void {
    for (const wire of this.#wires) wire.isBlackholed = true
  }

  /** Delays all data that either side sends within this time until its end. */
  delayFor(durationMs: number): void {
    this.#delayedUntilMs = this.#network.time.nowMs + durationMs
  }

  /** Cuts the connection after this many bytes in both directions together. */
  cutAfter(bytes: number, how: 'reset' | 'blackholed'): void {
    this.#cut = { bytes: Math.max(1, bytes), how }
  }

  #onDeath(socket: SimSocket): void {
    if (socket.destroyed) return
    const wire = this.#wireFrom(socket)
    // The operating system closes the connections of a dead process.
    if (!wire.isBlackholed) this.#put(wire, 'reset')
    socket.destroy()
  }

  #put(wire: Wire, chunk: Chunk): void {
    if (wire.isBlackholed) {
      if (Buffer.isBuffer(chunk)) wire.bytes += chunk.length
      return
    }
    const nowMs = Math.max(this.#network.time.nowMs, this.#delayedUntilMs)
    wire.lastAtMs = Math.max(wire.lastAtMs, nowMs + this.#network.drawLatencyMs())
    wire.queue.push({ chunk, atMs: wire.lastAtMs })
    if (Buffer.isBuffer(chunk)) wire.bytes += chunk.length
    this.#schedule(wire)
  }

  #schedule(wire: Wire): void {
    const [first] = wire.queue
    if (first === undefined || wire.isScheduled || wire.isFull) return
    wire.isScheduled = true
    const delayMs = Math.max(0, first.atMs - this.#network.time.nowMs)
    this.#network.time.after(delayMs, () => this.#deliver(wire), wire.to.machine)
  }

  #deliver(wire: Wire): void {
    wire.isScheduled = false
    const first = wire.queue.shift()
    if (first === undefined) return
    const { chunk } = first
    if (wire.to.destroyed && Buffer.isBuffer(chunk)) {
      // The reader is dead, so the sender receives a reset.
      this.#put(this.#wireFrom(wire.to), 'reset')
      return
    }
    const hasRoom = wire.to.receive(chunk)
    if (Buffer.isBuffer(chunk)) wire.bytes -= chunk.length
    wire.isFull = !hasRoom && Buffer.isBuffer(chunk)
    if (!wire.isBlackholed && wire.bytes < WINDOW_BYTES) wire.from.flush()
    this.#schedule(wire)
    if (this.isOver) this.#network.remove(this)
  }

  #wireFrom(socket: SimSocket): Wire {
    return this.#wires[socket === this.client ? 0 : 1]
  }

  #wireTo(socket: SimSocket): Wire {
    return this.#wires[socket === this.client ? 1 : 0]
  }
}

function createWire(from: SimSocket, to: SimSocket): Wire {
  return {
    from,
    to,
    queue: [],
    lastAtMs: 0,
    bytes: 0,
    isFull: false,
    isScheduled: false,
    isBlackholed: false,
  }
}
