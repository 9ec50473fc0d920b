/** Parses option values from text, and describes what each type of option expects. */
import { isIP } from 'node:net'
import { isRecord, parseJson } from '../../base/json.ts'
import type { EnumOption, JsonObject, OptionSpec, QuantityOption } from './option.ts'

const DURATION_UNITS_MS: Record<string, number> = {
  ms: 1,
  s: 1_000,
  m: 60_000,
  h: 3_600_000,
  d: 86_400_000,
}

const BYTE_UNITS: Record<string, number> = {
  b: 1,
  kb: 1e3,
  mb: 1e6,
  gb: 1e9,
  kib: 2 ** 10,
  mib: 2 ** 20,
  gib: 2 ** 30,
}

const MAX_PORT = '65535'
/** The limit of durations: Node.js fires a timer of more than 2^31 - 1 ms (24.8 days) immediately. */
const MAX_TIMER = '24d'

/**
 * Parses a value of an option. Durations are in milliseconds, sizes in bytes.
 * @returns undefined if the option does not accept the text
 */
export function parseValue(
  option: OptionSpec,
  text: string,
): string | number | boolean | JsonObject | undefined {
  switch (option.type) {
    case 'text':
    case 'path':
    case 'directory':
      return text === '' ? undefined : text
    case 'url':
      return isUrl(text, /^https?:$/) ? text : undefined
    case 'socketUrl':
      return isUrl(text, /^(http|ws)s?:$/) ? text : undefined
    case 'dialUrl':
      return isUrl(text.replace(/^dns\+/i, ''), /^(http|ws)s?:$/) ? text : undefined
    case 'basePath':
      return parseBasePath(text)
    case 'network':
      return isNetwork(text) ? text : undefined
    case 'key':
      return isKey(text) ? text : undefined
    case 'enum':
      return parseEnum(option, text.toLowerCase())
    case 'boolean':
      return parseBoolean(text)
    case 'json':
      return parseObject(text)
    default:
      return parseWithinLimits(option, text)
  }
}

/** Returns a description of what the option accepts, to follow "expected": `an integer from 0 to 65535`. */
export function describeExpectation(option: OptionSpec): string {
  switch (option.type) {
    case 'text':
      return 'some text'
    case 'path':
    case 'directory':
      return 'a path'
    case 'url':
      return 'an http or https URL without a fragment, such as http://127.0.0.1:8000'
    case 'socketUrl':
      return 'an http, https, ws or wss URL without a fragment, such as http://127.0.0.1:8080'
    case 'dialUrl':
      return 'an http, https, ws or wss URL without a fragment, such as http://127.0.0.1:8080, or one with dns+ before it'
    case 'basePath':
      return 'a path such as /llm'
    case 'network':
      return 'an IP address or a block of them, such as 10.0.0.0/8'
    case 'key':
      return `a key of ${MIN_KEY_LENGTH} or more printable characters without spaces and commas, or @file`
    case 'enum':
      return describeEnum(option)
    case 'boolean':
      return 'true or false'
    case 'json':
      return `a JSON object, such as {"temperature": 0.7}`
    case 'port':
    case 'integer':
      return `an integer ${describeRange(option)}`
    case 'number':
      return `a number ${describeRange(option)}`
    case 'duration':
      return `a duration ${describeRange(option)}, such as 500ms, 30s or 5m`
    case 'bytes':
      return `a size ${describeRange(option)}, such as 512KiB or 64MiB`
  }
}

function describeEnum(option: EnumOption): string {
  return `${option.values.slice(0, -1).join(', ')} or ${option.values.at(-1)}`
}

function describeRange(option: QuantityOption): string {
  const { min, max } = formatLimits(option)
  return max === undefined ? `of at least ${min}` : `from ${min} to ${max}`
}

/** Returns the limits in the user's notation. */
function formatLimits(option: QuantityOption): { min: string; max: string | undefined } {
  const max = option.type === 'port' ? MAX_PORT : option.type === 'duration' ? MAX_TIMER : undefined
  return { min: option.min ?? '0', max: option.max ?? max }
}

function parseWithinLimits(option: QuantityOption, text: string): number | undefined {
  const value = parseQuantity(option.type, text)
  if (value === undefined) return undefined
  const { min, max } = formatLimits(option)
  if (value < parseQuantity(option.type, min)!) return undefined
  if (max !== undefined && value > parseQuantity(option.type, max)!) return undefined
  return value
}

function parseQuantity(type: QuantityOption['type'], text: string): number | undefined {
  switch (type) {
    case 'port':
    case 'integer':
      return /^\d{1,15}$/.test(text) ? Number(text) : undefined
    case 'number':
      return parseScaled(text, { '': 1 }, '')
    case 'duration':
      return parseScaled(text, DURATION_UNITS_MS, 's')
    case 'bytes':
      return parseScaled(text, BYTE_UNITS, 'b')
  }
}

/** Converts a quantity such as `1.5h` to the smallest unit; a number without a unit is in `bareUnit`. */
function parseScaled(text: string, units: Record<string, number>, bareUnit: string): number | undefined {
  const match = /^(\d{1,15}(?:\.\d{1,9})?) ?([a-z]*)$/i.exec(text)
  if (!match) return undefined
  const unit = match[2]!.toLowerCase() || bareUnit
  if (!Object.hasOwn(units, unit)) return undefined
  const value = Number(match[1]) * units[unit]!
  return unit === '' ? value : Math.round(value)
}

function parseEnum({ values, synonyms = {} }: EnumOption, word: string): string | undefined {
  const meant = Object.hasOwn(synonyms, word) ? synonyms[word] : word
  return values.find((value) => value === meant)
}

function parseBoolean(text: string): boolean | undefined {
  if (/^(true|1)$/i.test(text)) return true
  if (/^(false|0)$/i.test(text)) return false
  return undefined
}

function parseObject(text: string): JsonObject | undefined {
  const value = parseJson(text)
  return isRecord(value) ? value : undefined
}

/**
 * Normalizes a path prefix: `/llm` for `llm` and `/llm/`, an empty string for `/`.
 * @returns undefined if it is invalid
 */
function parseBasePath(text: string): string | undefined {
  const path = text.replace(/^\/+|\/+$/g, '')
  if (path === '') return ''
  return /^[\w.~-]+(\/[\w.~-]+)*$/.test(path) ? `/${path}` : undefined
}

function isNetwork(text: string): boolean {
  const [, address = '', , bits = '0'] = /^([^/]+)(\/(\d{1,3}))?$/.exec(text) ?? []
  const version = isIP(address)
  return version !== 0 && Number(bits) <= (version === 4 ? 32 : 128)
}

/**
 * The minimum length of a key, so that keys cannot be guessed: an agent that is connected with its own key could try
 * others without interruption.
 */
const MIN_KEY_LENGTH = 16

/**
 * Returns whether a key has the minimum length and only characters that are valid in a header and in a comma-separated
 * list.
 */
function isKey(text: string): boolean {
  return text.length >= MIN_KEY_LENGTH && /^[!-+\--~]+$/.test(text)
}

/**
 * Returns whether the text is an absolute URL with this scheme. It has no fragment, which WebSockets reject (RFC 6455,
 * section 3), and after which no path can follow.
 */
function isUrl(text: string, scheme: RegExp): boolean {
  const url = URL.parse(text)
  return url !== null && scheme.test(url.protocol) && !text.includes('#')
}
