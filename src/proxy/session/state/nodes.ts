/**
 * Which of several equal proxies a session belongs to. Nothing is shared between them: a load balancer sends the calls
 * of a session to its node by the hash of the session's id, and a node refuses what is not its own.
 *
 * The hash is the one of nginx's `hash` directive (`ngx_http_upstream_hash_module.c`), which HAProxy's converters and a
 * few lines of Lua in Envoy can compute as well: bits 16 to 30 of the CRC-32 of the id in UTF-8.
 */
import { crc32 } from 'node:zlib'
import { ProxyError } from '../../../base/errors.ts'

/** A node among all of them. */
export interface NodePlace {
  /** From 1. */
  readonly number: number
  readonly of: number
}

/** nginx takes 15 bits. */
const MAX_NODES = 32_767

/** @returns the number of the session's node, from 1 */
export function nodeOfSession(sessionId: string, of: number): number {
  return (((crc32(sessionId) >>> 16) & 0x7fff) % of) + 1
}

export function isOwn(sessionId: string, node: NodePlace | undefined): boolean {
  return node === undefined || nodeOfSession(sessionId, node.of) === node.number
}

/** @throws ProxyError `wrong_node` for a session of another node */
export function refuseForeign(sessionId: string, node: NodePlace | undefined): void {
  if (node === undefined || isOwn(sessionId, node)) return
  const right = `${nodeOfSession(sessionId, node.of)}/${node.of}`
  const message =
    `Session ${sessionId} belongs to node ${right}, and this is ${shownNode(node)}: the load balancer must ` +
    'send each session to its own node'
  throw new ProxyError('wrong_node', message, { node: right })
}

/** `2/4`. */
export function shownNode({ number, of }: NodePlace): string {
  return `${number}/${of}`
}

/**
 * Reads `2/4`, or `ordinal/4`: then the number at the end of the host's name, which a StatefulSet counts from 0, says
 * which.
 * @throws ProxyError `config_invalid`
 */
export function parseNode(text: string, hostname: string): NodePlace {
  const [, name = '', count = ''] = /^(\d{1,5}|ordinal)\/(\d{1,5})$/.exec(text) ?? []
  const ordinal = /-(\d{1,5})$/.exec(hostname)?.[1]
  if (name === 'ordinal' && ordinal === undefined) {
    throw new ProxyError(
      'config_invalid',
      `node: ${hostname} does not end in an ordinal, such as llm-proxy-0`,
    )
  }
  const number = name === 'ordinal' ? Number(ordinal) + 1 : Number(name)
  const of = Number(count)
  if (number >= 1 && number <= of && of <= MAX_NODES) return { number, of }
  const isOrdinal = name === 'ordinal' ? ` on ${hostname}` : ''
  throw new ProxyError('config_invalid', `node: '${text}'${isOrdinal} is none; give 2/4 or ordinal/4`)
}
