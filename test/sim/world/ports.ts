/** Implements the product's ports with the simulated world. */
import type { Socket } from 'node:net'
import WebSocket from 'ws'
import type { Logger } from '../../../src/base/logger.ts'
import type { SocketConnector } from '../../../src/proxy/engines/clients/wire/connection.ts'
import type { SocketDialer } from '../../../src/worker/proxy-connection.ts'
import type { Network } from './network.ts'
import { Machine, type World } from './world.ts'

/** Frames of a response. */
const NUMBERED = /^\{"type":"completion_(chunk|response)"/
const REPEATED_WITHIN_MS = 20

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
 * @param repeats returns for each numbered frame whether it is sent again, a while later
 */
export function dialProxy(network: Network, repeats: () => boolean): SocketDialer {
  return (url, options) => {
    const { hostname, port } = new URL(url)
    const machine = Machine.current
    const createConnection = () =>
      network.connect({ host: hostname, port: Number(port) }) as unknown as Socket
    const socket = new WebSocket(url, { ...options, createConnection })
    const send = socket.send.bind(socket) as (text: string) => void
    const again = (text: string) => {
      if (socket.readyState === WebSocket.OPEN) send(text)
    }
    socket.send = (text: string) => {
      send(text)
      if (!NUMBERED.test(text) || !repeats()) return
      network.time.after(REPEATED_WITHIN_MS * network.random(), () => again(text), machine)
    }
    return socket
  }
}

/** Creates a logger whose lines become part of the run's log. */
export function loggerOf(world: World, who: string): Logger {
  const line = (level: string) => (fields: object, message: string) => {
    const { err } = fields as { err?: unknown }
    const cause = err instanceof Error ? `: ${err.message}` : ''
    world.log(who, `[${level}] ${message}${cause}`)
  }
  return { debug() {}, info: line('info'), warn: line('warn'), error: line('error') }
}
