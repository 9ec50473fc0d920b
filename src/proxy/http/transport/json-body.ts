import { isUtf8 } from 'node:buffer'
import type { FastifyInstance, FastifyRequest } from 'fastify'
import { ProxyError } from '../../../base/errors.ts'
import {
  type BodyContent,
  RequestReader,
  type RequestReaderOptions,
  type WeightCheck,
} from '../../../protocol/canonical/request-reader.ts'
import { isNestedTooDeeply, type JsonWeight, MAX_NESTING } from '../../../protocol/json/json-weight.ts'
import { decodeBody } from './content-coding.ts'

/**
 * Matches a number that Python's `json` writes but JSON does not allow, after the name of its field, which tells the
 * client more than the parser's message. Each part is bounded, because the text is untrusted.
 */
const NOT_FINITE = /"([^"\\]{1,200})"\s{0,20}:\s{0,20}(NaN|-?Infinity)/

declare module 'fastify' {
  interface FastifyRequest {
    /** The approximate memory that the request's body occupies, in bytes; 0 if there is none. */
    bodyMemoryBytes: number
  }
}

/**
 * Limits on the values of one body, so that parsing and validating it takes at most 0.2 s. A conversation of 2,000
 * turns with 200 tools has about 30,000 nodes, and the longest prompt of token ids has a million commas.
 */
export const BODY_VALUES = { nodes: 100_000, commas: 2_000_000, members: 10_000 } as const

/** The approximate heap memory of a value beyond its text, in bytes. */
const NODE_BYTES = 64
const ELEMENT_BYTES = 8

/** Makes an application parse bodies as JSON, whatever their content type; an empty body becomes undefined. */
export function readAnyBodyAsJson(app: FastifyInstance): void {
  acceptAnyBody(app, (request, body) => readBody(request, body, new RequestReader()).value)
}

/** Makes an application keep bodies as bytes, whatever their content type, until their session is known. */
export function keepAnyBodyAsBytes(app: FastifyInstance): void {
  acceptAnyBody(app, (_request, body) => body)
}

function acceptAnyBody(app: FastifyInstance, read: (request: FastifyRequest, body: Buffer) => unknown): void {
  app.removeAllContentTypeParsers()
  app.decorateRequest('bodyMemoryBytes', 0)
  app.addContentTypeParser('*', { parseAs: 'buffer' }, (request, body: Buffer, done) => {
    const encoding = request.headers['content-encoding']
    const limitBytes = request.routeOptions.bodyLimit ?? app.initialConfig.bodyLimit!
    const decoded = encoding === undefined ? body : decodeBody(body, encoding, limitBytes)
    if (decoded instanceof Promise) return decoded.then((bytes) => read(request, bytes))
    return done(null, read(request, decoded))
  })
}

/**
 * Parses a body as JSON; an empty body becomes undefined. Sets the request's `bodyMemoryBytes`.
 * @param reader the cache of the session that the body belongs to
 * @throws ProxyError `invalid_json`, `invalid_request`, `body_too_large`
 */
export function readBody(
  request: FastifyRequest,
  body: Buffer,
  reader: RequestReader,
  responseOptions: RequestReaderOptions = {},
): BodyContent {
  // Decoding would replace invalid bytes, so that the engine and the record would receive a different text.
  if (!isUtf8(body)) throw new ProxyError('invalid_json', 'The request body is not valid UTF-8')
  const admit: WeightCheck = (weight) => {
    rejectTooMany(weight)
    request.bodyMemoryBytes = body.length + weight.nodes * NODE_BYTES + weight.commas * ELEMENT_BYTES
  }
  const read = parseJson(body, () => reader.read(body, admit, responseOptions))
  if (read.list !== undefined || !isNestedTooDeeply(read.value)) return read
  throw new ProxyError(
    'invalid_request',
    `The request body is nested too deeply: ${MAX_NESTING} levels are the limit`,
  )
}

function rejectTooMany({ nodes, commas, widest }: JsonWeight): void {
  if (nodes <= BODY_VALUES.nodes && commas <= BODY_VALUES.commas && widest <= BODY_VALUES.members) return
  const message =
    `The request body has too many values: ${BODY_VALUES.nodes} objects, lists and members, ` +
    `${BODY_VALUES.commas} commas and ${BODY_VALUES.members} members of one object are the limit`
  throw new ProxyError('body_too_large', message)
}

function parseJson(body: Buffer, read: () => BodyContent): BodyContent {
  try {
    return read()
  } catch (error) {
    if (error instanceof ProxyError) throw error
    const text = body.toString()
    if (text.trim() === '') return { value: undefined, newNodes: 0 }
    throw createInvalidJsonError(text, error as Error)
  }
}

function createInvalidJsonError(text: string, { message }: Error): ProxyError {
  const [, param, value] = NOT_FINITE.exec(text) ?? []
  if (param !== undefined) {
    return new ProxyError('invalid_request', `'${param}' must be a finite number, not ${value}`, { param })
  }
  // The quotation of the faulty text is removed, because errors are logged and prompts must not be.
  const reason = message.replace(/, (\.\.\.)?".*/s, '')
  return new ProxyError('invalid_json', `The request body is not valid JSON: ${reason}`)
}
