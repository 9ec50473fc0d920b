/**
 * The registry of workers: accepts their connections, detects dead ones, and retains disconnected workers during their
 * grace period.
 */
import { randomUUID } from 'node:crypto'
import { logEvent } from '../../base/log-events.ts'
import { type Frame, helloV1, helloV2, parseFrame } from '../../protocol/worker/frames.ts'
import {
  CLOSE,
  HELLO_TIMEOUT_MS,
  PROXY_SHUTS_DOWN,
  type WorkerHelloV1,
  type WorkerHelloV2,
} from '../../protocol/worker/protocol.ts'
import { ConnectedWorker, toWorkerIdentity, type WorkerContext } from './connected-worker.ts'
import type { ByteCounter, RelaySocket } from './relay-socket.ts'

/** Callbacks for workers that join, change and leave. The requests of a worker that leaves fail after `onLeft`. */
interface RegistryListener {
  onJoined(worker: ConnectedWorker): void
  onChanged(worker: ConnectedWorker): void
  onLeft(worker: ConnectedWorker): void
}

/**
 * The minimum interval between log lines about rejected connections: clients of a proxy without keys must not fill the
 * disk with them.
 */
const REJECTION_INTERVAL_MS = 1_000

/** The workers that are connected, or were and may reconnect. */
export class WorkerRegistry {
  readonly #context: WorkerContext
  readonly #listener: RegistryListener
  readonly #workers = new Map<string, ConnectedWorker>()
  /** Functions that cancel the grace period of a disconnected worker, by worker id. */
  readonly #cancelGrace = new Map<string, () => void>()
  /** Sockets that are open and were not rejected. */
  readonly #sockets = new Set<RelaySocket>()
  /** The time on the monotonic clock from which a rejection may be logged. */
  #nextRejectionMs = Number.NEGATIVE_INFINITY

  constructor(context: WorkerContext, listener: RegistryListener) {
    this.#context = context
    this.#listener = listener
  }

  get(workerId: string): ConnectedWorker | undefined {
    return this.#workers.get(workerId)
  }

  /** Returns the workers with a connection, in the order in which they joined. */
  listConnected(): ConnectedWorker[] {
    return [...this.#workers.values()].filter((worker) => worker.isConnected)
  }

  /**
   * Accepts a socket that was opened at `/ws/worker`, and owns it from then on.
   * @param greeted called when the worker's hello is accepted
   * @param connection the connection of the socket; absent: a frame is a sign of life only once it is complete
   */
  accept(socket: RelaySocket, greeted: () => void = () => {}, connection?: ByteCounter): void {
    this.#sockets.add(socket)
    let worker: ConnectedWorker | undefined
    const heartbeat = new WorkerHeartbeat(socket, connection, this.#context)
    const cancelHello = this.#context.clock.after(HELLO_TIMEOUT_MS, () =>
      this.#reject(socket, CLOSE.badHello, 'no worker_hello in time'),
    )
    const receive = (data: { toString(): string }, isBinary: boolean) => {
      heartbeat.reportReceived()
      // A socket that was rejected or replaced may deliver frames until it is closed.
      if (!this.#sockets.has(socket) || (worker && !worker.isOn(socket))) return
      const frame = parseFrame(data, isBinary)
      if (worker) return this.#receive(worker, socket, frame, data)
      cancelHello()
      worker = this.#welcome(socket, frame)
      if (!worker) return
      heartbeat.start(worker)
      greeted()
    }
    socket.on('message', (data, isBinary) => {
      try {
        receive(data, isBinary)
      } catch (err) {
        // A defect, such as a failed assertion, ends this connection; the worker reconnects.
        const workerId = worker?.identity.workerId
        logEvent(this.#context.logger, 'worker_connection_failed', { worker_id: workerId, err })
        this.#sockets.delete(socket)
        socket.terminate()
      }
    })
    socket.on('pong', () => heartbeat.reportReceived())
    socket.on('close', (code) => {
      cancelHello()
      heartbeat.stop()
      this.#sockets.delete(socket)
      if (worker?.isOn(socket)) this.#handleClosed(worker, { code, failure: heartbeat.failure })
    })
  }

  /** Disconnects all workers, so that they reconnect elsewhere or later. Requests in flight fail. */
  close(): void {
    for (const worker of [...this.#workers.values()])
      this.#remove(worker, 'was disconnected: the proxy is shutting down')
    for (const socket of this.#sockets) socket.close(CLOSE.goingAway, PROXY_SHUTS_DOWN)
  }

  #welcome(socket: RelaySocket, frame: Frame | undefined): ConnectedWorker | undefined {
    if (frame === undefined)
      return this.#reject(socket, CLOSE.badHello, 'the first frame is not JSON with a type')
    if (frame.type !== 'worker_hello') {
      return this.#reject(socket, CLOSE.notHello, 'the first frame must be a worker_hello')
    }
    if (frame.protocol === undefined || frame.protocol === 1) {
      return helloV1.isValid(frame)
        ? this.#welcomeV1(socket, frame)
        : this.#reject(socket, CLOSE.badHello, `bad worker_hello: ${helloV1.explain(frame)}`)
    }
    return helloV2.isValid(frame)
      ? this.#welcomeV2(socket, frame)
      : this.#reject(socket, CLOSE.badHello, `bad worker_hello: ${helloV2.explain(frame)}`)
  }

  /** Accepts a version-1 worker. It replaces a connected worker with the same id, because version 1 has no epochs. */
  #welcomeV1(socket: RelaySocket, hello: WorkerHelloV1): ConnectedWorker {
    const workerId = hello.worker_id ?? `worker-${randomUUID()}`
    this.#replace(workerId)
    const identity = {
      workerId,
      version: 1,
      epoch: undefined,
      capabilities: [],
      maxConcurrency: this.#context.limits.v1MaxConcurrency,
    } as const
    const worker = new ConnectedWorker(identity, this.#context)
    worker.connectV1(socket)
    this.#join(worker)
    return worker
  }

  #welcomeV2(socket: RelaySocket, hello: WorkerHelloV2): ConnectedWorker | undefined {
    const existing = this.#workers.get(hello.worker_id)
    const knownEpoch = existing?.identity.epoch ?? -1
    if (hello.epoch < knownEpoch) {
      return this.#reject(
        socket,
        CLOSE.staleEpoch,
        'a worker with this id and a newer epoch exists',
        hello.worker_id,
      )
    }
    if (existing && hello.epoch === knownEpoch && existing.resumes)
      return this.#resume(existing, socket, hello)
    this.#replace(hello.worker_id)
    const worker = new ConnectedWorker(toWorkerIdentity(hello), this.#context)
    worker.connectV2(socket, hello)
    this.#join(worker)
    return worker
  }

  /**
   * Resumes a worker of the same epoch on a new connection. The old connection may be dead without having been
   * detected.
   */
  #resume(worker: ConnectedWorker, socket: RelaySocket, hello: WorkerHelloV2): ConnectedWorker {
    this.#endGrace(worker)
    worker.disconnect()?.close(CLOSE.replaced, 'the worker has a newer connection')
    worker.connectV2(socket, hello)
    logEvent(this.#context.logger, 'worker_resumed', { worker_id: worker.identity.workerId })
    this.#listener.onChanged(worker)
    return worker
  }

  #receive(worker: ConnectedWorker, socket: RelaySocket, frame: Frame | undefined, data: unknown): void {
    if (frame === undefined) {
      const reason = 'sent a frame that is not JSON with a type'
      this.#log('worker_cut_off', worker, reason)
      this.#remove(worker, reason)
      socket.close(CLOSE.protocolError, 'a frame must be JSON text with a type')
      return
    }
    worker.receive(frame, getByteSize(data))
    if (frame.type === 'worker_status') this.#listener.onChanged(worker)
  }

  /**
   * Handles a closed connection.
   * @param failure why the heartbeat terminated the connection; undefined: it did not
   */
  #handleClosed(
    worker: ConnectedWorker,
    { code, failure }: { code: number; failure: string | undefined },
  ): void {
    const reason = failure === undefined ? `left (close code ${code})` : `was cut off after ${failure}`
    if (failure !== undefined) this.#log('worker_cut_off', worker, failure)
    if (code === CLOSE.done || !worker.resumes) {
      this.#remove(worker, reason)
      return
    }
    worker.disconnect()
    if (failure === undefined) this.#log('worker_disconnected', worker, `close code ${code}`)
    this.#listener.onChanged(worker)
    const { graceMs } = this.#context.limits
    const cancel = this.#context.clock.after(graceMs, () =>
      this.#remove(worker, `lost its connection and did not reconnect within ${graceMs / 1000} s`),
    )
    this.#cancelGrace.set(worker.identity.workerId, cancel)
  }

  /** Removes the worker with this id, if there is one, because a new one replaces it. */
  #replace(workerId: string): void {
    const existing = this.#workers.get(workerId)
    if (!existing) return
    const socket = existing.disconnect()
    this.#remove(existing, 'was replaced by a newer worker with this id')
    socket?.close(CLOSE.replaced, 'a newer worker with this id has connected')
  }

  #join(worker: ConnectedWorker): void {
    const { workerId, version } = worker.identity
    this.#workers.set(workerId, worker)
    logEvent(this.#context.logger, 'worker_connected', { worker_id: workerId, protocol: version })
    this.#listener.onJoined(worker)
  }

  #remove(worker: ConnectedWorker, reason: string): void {
    this.#endGrace(worker)
    worker.disconnect()
    this.#workers.delete(worker.identity.workerId)
    this.#log('worker_left', worker, reason)
    this.#listener.onLeft(worker)
    worker.lose(reason)
  }

  #endGrace({ identity: { workerId } }: ConnectedWorker): void {
    this.#cancelGrace.get(workerId)?.()
    this.#cancelGrace.delete(workerId)
  }

  #log(
    event: 'worker_cut_off' | 'worker_disconnected' | 'worker_left',
    { identity, requestCount }: ConnectedWorker,
    reason: string,
  ): void {
    const fields = { worker_id: identity.workerId, reason, requests: requestCount }
    logEvent(this.#context.logger, event, fields)
  }

  #reject(socket: RelaySocket, code: number, cause: string, workerId?: string): undefined {
    // RFC 6455 limits the reason in a close frame to 123 bytes; these reasons are ASCII.
    const reason = cause.slice(0, 120)
    this.#sockets.delete(socket)
    socket.close(code, reason)
    const { clock, logger } = this.#context
    if (clock.nowMs() < this.#nextRejectionMs) return
    this.#nextRejectionMs = clock.nowMs() + REJECTION_INTERVAL_MS
    logEvent(logger, 'worker_rejected', { reason, close_code: code, worker_id: workerId })
  }
}

/**
 * The heartbeat of a connection. It pings the socket, and terminates it after too long a silence, because a half-open
 * connection emits no event, or if the worker sends but does not read: all frames to it stay in memory.
 */
class WorkerHeartbeat {
  readonly #socket: RelaySocket
  readonly #connection: ByteCounter | undefined
  readonly #context: WorkerContext
  #lastReceivedMs: number
  /** Whether a frame was received since the last heartbeat. */
  #hasReceived = true
  /** The bytes that the connection had received at the last sign of life. */
  #bytesRead = 0
  /** The time of the ping that the socket has not written yet. */
  #unsentPingMs: number | undefined
  #failure: string | undefined
  #cancel: (() => void) | undefined

  constructor(socket: RelaySocket, connection: ByteCounter | undefined, context: WorkerContext) {
    this.#socket = socket
    this.#connection = connection
    this.#context = context
    this.#lastReceivedMs = context.clock.nowMs()
  }

  /** The reason why the heartbeat terminated the connection; undefined: it did not. */
  get failure(): string | undefined {
    return this.#failure
  }

  reportReceived(): void {
    this.#lastReceivedMs = this.#context.clock.nowMs()
    this.#hasReceived = true
  }

  start(worker: ConnectedWorker): void {
    const { clock, limits } = this.#context
    this.#cancel = clock.after(limits.heartbeatMs, () => {
      const nowMs = clock.nowMs()
      this.#failure = this.#findFailure(worker, nowMs)
      if (this.#failure !== undefined) return this.#socket.terminate()
      if (this.#unsentPingMs === undefined) this.#ping(nowMs)
      this.start(worker)
    })
  }

  stop(): void {
    this.#cancel?.()
  }

  #findFailure({ silenceLimitMs, stallLimitMs }: ConnectedWorker, nowMs: number): string | undefined {
    const bytesRead = this.#connection?.bytesRead ?? 0
    // A part of a frame is a sign of life, too: a large frame may take longer than the limit.
    const isArriving = nowMs - this.#lastReceivedMs >= silenceLimitMs && bytesRead > this.#bytesRead
    if (isArriving) this.#lastReceivedMs = nowMs
    if (isArriving || this.#hasReceived) this.#bytesRead = bytesRead
    this.#hasReceived = false
    const silentMs = nowMs - this.#lastReceivedMs
    if (silentMs >= silenceLimitMs) return `${toSeconds(silentMs)} s of silence`
    const stalledMs = nowMs - (this.#unsentPingMs ?? nowMs)
    return stalledMs >= stallLimitMs ? `${toSeconds(stalledMs)} s without reading` : undefined
  }

  #ping(nowMs: number): void {
    this.#unsentPingMs = nowMs
    this.#socket.ping(undefined, undefined, () => {
      this.#unsentPingMs = undefined
    })
  }
}

function toSeconds(ms: number): number {
  return Math.round(ms / 1000)
}

function getByteSize(data: unknown): number {
  return Buffer.isBuffer(data) ? data.length : Buffer.byteLength(String(data))
}
