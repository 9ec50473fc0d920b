/** The client of a running proxy that commands use. */

import { readFileSync } from 'node:fs'
import { type IncomingMessage, request as requestHttp } from 'node:http'
import { type RequestOptions, request as requestHttps } from 'node:https'
import { buffer, text } from 'node:stream/consumers'
import Type, { type Static, type TSchema } from 'typebox'
import { Value } from 'typebox/value'
import { ProxyError } from '../base/errors.ts'
import { parseJson } from '../base/json.ts'
import { toShownUrl } from '../base/shown-url.ts'
import { splitLines } from '../base/split-lines.ts'
import { SERVE_COMMAND } from '../commands.ts'
import { readFormerNames } from '../protocol/schema/former-names.ts'
import { loadConfig } from '../proxy/config/load.ts'
import { readTrustedAuthorities } from '../proxy/config/trusted-authorities.ts'
import { ErrorReply } from '../proxy/http/schemas/described.ts'
import { formatBaseUrl } from '../proxy/http/transport/base-url.ts'
import { addMissingMembers, toClientSchema } from './missing-members.ts'

export interface ProxyAddress {
  /** The base URL of the proxy; undefined: the address at which `serve` would listen in this environment. */
  readonly url: string | undefined
  readonly adminKeys: readonly string[]
  /** File of the certificate authorities for the proxy's certificate. */
  readonly tlsCa: string | undefined
}

const REMEDY = 'start it, or name another one with --url'

export class OperatorClient {
  readonly #url: string
  readonly #options: RequestOptions
  readonly #remedy: string

  /**
   * @param remedy the advice to the user if no proxy responds
   * @throws ProxyError `config_invalid` for a file without certificate authorities
   */
  constructor({ adminKeys: [key], ...address }: ProxyAddress, remedy = REMEDY) {
    this.#remedy = remedy
    const { url, trust } = getServer(address)
    this.#url = url.replace(/\/+$/, '')
    this.#options = { ...trust, headers: key === undefined ? {} : { authorization: `Bearer ${key}` } }
  }

  get<T extends TSchema>(path: string, schema: T): Promise<Static<T>> {
    return this.sendJson('GET', path, schema)
  }

  /**
   * Sends a request.
   * @param body sent as JSON
   * @throws ProxyError `session_not_found` for a 404, `start_failed` for any other failure
   */
  async sendJson<T extends TSchema>(
    method: string,
    path: string,
    schema: T,
    body?: object,
  ): Promise<Static<T>> {
    const response = await this.#sendRequest(method, path, body)
    const payload = parseJson(await text(response))
    return checkResponse(schema, payload, response.statusCode ?? 0, this.#url + path)
  }

  /** Returns the body of a response. @throws ProxyError as {@link sendJson} */
  async getBytes(path: string): Promise<Buffer> {
    return buffer(await this.#open(path))
  }

  /**
   * Yields the body of a response as text chunks.
   * @throws ProxyError as {@link sendJson}, and if the response is interrupted
   */
  async *streamText(path: string): AsyncGenerator<string> {
    const response = await this.#open(path)
    try {
      yield* response.setEncoding('utf8')
    } catch (cause) {
      throw new ProxyError('start_failed', `${toShownUrl(this.#url)} ended its response early`, { cause })
    }
  }

  /** Yields each parsed line of a streamed response, until the proxy ends it. @throws ProxyError as {@link sendJson} */
  async *streamLines<T extends TSchema>(path: string, schema: T): AsyncGenerator<Static<T>> {
    const response = await this.#open(path)
    const expected = toClientSchema(schema)
    try {
      for await (const line of splitLines(response.setEncoding('utf8'))) {
        const value = parseJson(line)
        adaptEarlierRelease(schema, value)
        if (Value.Check(expected, value)) yield value
      }
    } finally {
      response.destroy()
    }
  }

  async #open(path: string): Promise<IncomingMessage> {
    const response = await this.#sendRequest('GET', path)
    const { statusCode: status = 0 } = response
    if (status === 200) return response
    throw createRejection(status, parseJson(await text(response)), this.#url + path)
  }

  #sendRequest(method: string, path: string, body?: object): Promise<IncomingMessage> {
    const url = this.#url + path
    const request = url.startsWith('https:') ? requestHttps : requestHttp
    const headers = { ...this.#options.headers, ...(body && { 'content-type': 'application/json' }) }
    return new Promise((resolve, reject) => {
      request(url, { ...this.#options, method, headers }, resolve)
        .on('error', (cause) =>
          reject(
            new ProxyError('start_failed', `no proxy answers at ${toShownUrl(this.#url)}: ${this.#remedy}`, {
              cause,
            }),
          ),
        )
        .end(body && JSON.stringify(body))
    })
  }
}

const Detail = Type.Pick(ErrorReply, ['detail'])
/** The error format of the agent routes. */
const AgentError = Type.Object({ error: Type.Object({ message: Type.String() }) })

/**
 * Returns the value of a response if it is a success and matches the schema.
 * @throws ProxyError `session_not_found` for a 404, `start_failed` for any other failure
 */
export function checkResponse<T extends TSchema>(
  schema: T,
  payload: unknown,
  status: number,
  url: string,
): Static<T> {
  adaptEarlierRelease(schema, payload)
  if (status >= 200 && status < 300 && Value.Check(toClientSchema(schema), payload)) return payload
  throw createRejection(status, payload, url)
}

/** Adds the present names and missing members to a response of an earlier release. */
function adaptEarlierRelease(schema: TSchema, value: unknown): void {
  readFormerNames(schema, value)
  addMissingMembers(schema, value)
}

function createRejection(status: number, payload: unknown, url: string): ProxyError {
  const reason = Value.Check(Detail, payload)
    ? payload.detail
    : Value.Check(AgentError, payload)
      ? payload.error.message
      : undefined
  if (reason === undefined || (status >= 200 && status < 300)) {
    return new ProxyError(
      'start_failed',
      `${toShownUrl(url)} does not respond as this version of llm-proxy does`,
    )
  }
  const hint = status === 401 || status === 403 ? ': give --admin-key' : ''
  return new ProxyError(status === 404 ? 'session_not_found' : 'start_failed', reason + hint)
}

interface ProxyEndpoint {
  url: string
  trust: RequestOptions
}

/**
 * Returns the URL of the proxy at an address, and options to trust its certificate.
 * @throws ProxyError `config_invalid` for a file without certificate authorities
 */
export function getServer({ url, tlsCa }: Omit<ProxyAddress, 'adminKeys'>): ProxyEndpoint {
  return url === undefined ? getServerFromEnvironment() : { url, trust: readTrustedAuthorities(tlsCa) }
}

/**
 * Returns the URL of the proxy that `serve` would start in this environment, and options to trust its certificate: in
 * a container, commands run with the same environment as `serve`.
 */
function getServerFromEnvironment(): ProxyEndpoint {
  const { host, port, basePath, tlsCert } = loadConfig(SERVE_COMMAND, {}, process.env)
  const reachable = host === '0.0.0.0' ? '127.0.0.1' : host === '::' ? '::1' : host
  const url = formatBaseUrl({ host: reachable, port, basePath, secure: tlsCert !== undefined })
  return { url, trust: tlsCert === undefined ? {} : trustOnlyCertificate(tlsCert) }
}

/**
 * Returns options that trust exactly the certificate in a file. Its issuer and its name are not checked, because the
 * certificate does not name the loopback address.
 */
function trustOnlyCertificate(path: string): RequestOptions {
  return {
    ca: readFileSync(path, 'utf8'),
    allowPartialTrustChain: true,
    checkServerIdentity: () => undefined,
  }
}
