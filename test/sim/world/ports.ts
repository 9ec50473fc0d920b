/** The simulated world as the ports of the product. */
import type { Socket } from 'node:net'
import WebSocket from 'ws'
import type { Connect } from '../../../src/engine/connection.ts'
import type { Logger } from '../../../src/logger.ts'
import type { Dial } from '../../../src/relay/proxy-connection.ts'
import type { Network } from './network.ts'
import type { World } from './world.ts'

export function connectEngine(network: Network): Connect {
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

export function dialProxy(network: Network): Dial {
  return (url, options) => {
    const { hostname, port } = new URL(url)
    const createConnection = () =>
      network.connect({ host: hostname, port: Number(port) }) as unknown as Socket
    return new WebSocket(url, { ...options, createConnection })
  }
}

/** What a part of the product logs is a part of the run's log. */
export function loggerOf(world: World, who: string): Logger {
  const line = (level: string) => (fields: object, message: string) => {
    const { err } = fields as { err?: unknown }
    const cause = err instanceof Error ? `: ${err.message}` : ''
    world.log(who, `[${level}] ${message}${cause}`)
  }
  return { debug() {}, info: line('info'), warn: line('warn'), error: line('error') }
}
