/** Implements the product's ports with the simulated world. */
import type { Socket } from 'node:net'
import WebSocket from 'ws'
import type { Logger } from '../../../src/base/logger.ts'
import type { SocketConnector } from '../../../src/proxy/engines/clients/wire/connection.ts'
import type { SocketDialer } from '../../../src/worker/proxy-connection.ts'
import type { Network } from './network.ts'
import { Machine, type World } from './world.ts'

/** Matches frames of a response. */
const RESPONSE_FRAME = /^\{"type":"completion_(chunk|response)"/
const MAX_REPEAT_DELAY_MS = 20

export function connectEngine(network: Network): SocketConnector {
  return ({ hostname, port }, callback) => {
    const socket = network.connect({ host: hostname, port: Number(port) })
    const onError = (error: Error) => callback(error, null)
    socket.once('error', onError)
    socket.once('connect', () => {
      socket.off('error', onError)
      callback(null, socket as unknown as Socket)
    })
  }
}

/**
 * Connects to the proxy.
 * @param repeats returns for each response frame whether to send it again, with a delay
 */
export function dialProxy(network: Network, repeats: () => boolean): SocketDialer {
  return (url, options) => {
    const { hostname, port } = new URL(url)
    const machine = Machine.current
    const createConnection = () =>
      network.connect({ host: hostname, port: Number(port) }) as unknown as Socket
    const socket = new WebSocket(url, { ...options, createConnection })
    const send = socket.send.bind(socket) as (text: string) => void
    const resend = (text: string) => {
      if (socket.readyState === WebSocket.OPEN) send(text)
    }
    socket.send = (text: string) => {
      send(text)
      if (!RESPONSE_FRAME.test(text) || !repeats()) return
      network.time.after(MAX_REPEAT_DELAY_MS * network.random(), () => resend(text), machine)
    }
    return socket
  }
}

/** Creates a logger whose lines become part of the run's log. */
export function createLogger(world: World, actor: string): Logger {
  const line = (level: string) => (fields: object, message: string) => {
    const { err } = fields as { err?: unknown }
    const cause = err instanceof Error ? `: ${err.message}` : ''
    world.log(actor, `[${level}] ${message}${cause}`)
  }
  return { debug() {}, info: line('info'), warn: line('warn'), error: line('error') }
}
