/**
 * From flags, environment and file to a checked configuration; a flag goes before the environment, that before the
 * file.
 */
import { readFileSync } from 'node:fs'
import { ProxyError } from '../../base/errors.ts'
import { isRecord } from '../../base/json.ts'
import { didYouMean, nearest } from './nearest.ts'
import {
  CONFIG_FLAG,
  type CommandSpec,
  type ConfigOf,
  ENV_PREFIX,
  envNames,
  fileKeys,
  type OptionSpec,
} from './option.ts'
import { expectation, parseValue } from './values.ts'

/** What the user typed, by option key. */
export type Flags = Readonly<Record<string, string | boolean | readonly string[] | undefined>>

export type Env = Readonly<Record<string, string | undefined>>

/** A value as it was found, and where, in the words of a message. */
interface OptionValue {
  value: unknown
  from: string
}

interface ConfigFile {
  path: string
  values: Readonly<Record<string, unknown>>
}

/**
 * The command's configuration. Nothing is read but `flags`, `env` and the file that they name.
 * @throws ProxyError `config_invalid`: one line that says what is wrong, where it was given and what is allowed
 */
export function loadConfig<C extends CommandSpec>(command: C, flags: Flags, env: Env): ConfigOf<C> {
  const file = readConfigFile(command, flags, env)
  const config: Record<string, unknown> = {}
  // The variables may name keys of other commands too.
  const secrets = Object.entries(env).flatMap(([name, value]) => (OURS.test(name) ? getKeyFiles(value) : []))
  if (file) secrets.push(file.path)
  for (const [key, option] of Object.entries(command.options)) {
    const given = fromFlag(option, flags[key]) ?? fromEnv(command, option, env) ?? fromFile(option, file)
    config[key] = given ? parseGiven(option, given) : getDefault(option)
    if (given && option.type === 'key') secrets.push(...getKeyFiles(given.value))
  }
  Object.defineProperty(config, SECRET_FILES, { value: secrets })
  return config as ConfigOf<C>
}

/** Not to be enumerated: a configuration is printed and spread. */
const SECRET_FILES = Symbol('secret files')
const OURS = /^(LLM_PROXY|REMOTE_AGENT)_/

/** The files that hold a configuration's keys, and the one that it was read from: not for agents to see. */
export function getSecretFiles(config: object): readonly string[] {
  return (config as { [SECRET_FILES]?: readonly string[] })[SECRET_FILES] ?? []
}

function getKeyFiles(value: unknown): string[] {
  const items = (Array.isArray(value) ? value : [value]).filter((item) => typeof item === 'string')
  const files = items.flatMap((item) => item.split(',')).filter((item) => item.trim().startsWith('@'))
  return files.map((item) => item.trim().slice(1))
}

function fromFlag(option: OptionSpec, value: Flags[string]): OptionValue | undefined {
  return value === undefined ? undefined : { value, from: `--${option.flag}` }
}

/** A variable that is set to nothing counts as not set, as it does for compose files and shells. */
function fromEnv(command: CommandSpec, option: OptionSpec, env: Env): OptionValue | undefined {
  for (const name of envNames(command, option)) {
    const text = env[name]
    if (!text || isServiceLink(name, text)) continue
    return { value: option.repeatable ? splitList(option, text) : text, from: name }
  }
  return undefined
}

function splitList(option: OptionSpec, text: string): string[] {
  return text
    .split(option.type === 'path' ? /[,:]/ : ',')
    .map((item) => item.trim())
    .filter((item) => item !== '')
}

function fromFile(option: OptionSpec, file: ConfigFile | undefined): OptionValue | undefined {
  if (!file) return undefined
  const key = fileKeys(option).find((name) => Object.hasOwn(file.values, name))
  if (key === undefined) return undefined
  return { value: file.values[key], from: `${key} in ${file.path}` }
}

function getDefault(option: OptionSpec): unknown {
  if (option.repeatable) return []
  return option.default === undefined ? undefined : parseValue(option, option.default)
}

function parseGiven(option: OptionSpec, given: OptionValue): unknown {
  if (!option.repeatable) return parseOne(option, given.value, given.from)
  const items = Array.isArray(given.value) ? given.value : [given.value]
  const values = option.type === 'key' ? items.flatMap((item) => readKeys(item, given.from)) : items
  return values.map((value) => parseOne(option, value, given.from))
}

/** `@file` stands for the lines of the file; another value for itself. */
function readKeys(item: unknown, from: string): unknown[] {
  if (typeof item !== 'string' || !item.startsWith('@')) return [item]
  const path = item.slice(1)
  const keys = readText(path, from)
    .split('\n')
    .map((line) => line.trim())
    .filter((line) => line !== '')
  if (keys.length === 0) throw new ProxyError('config_invalid', `${from}: there is no key in ${path}`)
  return keys
}

/** What deployment files ship in the place of a key, or of a database. */
const PLACEHOLDER = /^change[-_]?me/i

function refusePlaceholder({ flag, type }: OptionSpec, text: string, from: string): void {
  if (!PLACEHOLDER.test(text) || (flag !== 'db' && type !== 'key')) return
  const own =
    flag === 'db'
      ? 'a database of your own there'
      : 'a key of your own there, such as openssl rand -hex 32 makes'
  throw new ProxyError('config_invalid', `${from} still has its placeholder: put ${own}`)
}

function parseOne(option: OptionSpec, value: unknown, from: string): unknown {
  const text = asText(option, value)
  if (text !== undefined) refusePlaceholder(option, text, from)
  const parsed = text === undefined ? undefined : parseValue(option, text)
  if (parsed !== undefined) return parsed
  const shown = option.secret ? 'invalid value' : `invalid value ${withoutCredentials(JSON.stringify(value))}`
  const hint = option.type === 'enum' && text !== undefined ? didYouMean(text, option.values) : ''
  throw new ProxyError('config_invalid', `${from}: ${shown}: expected ${expectation(option)}${hint}`)
}

/** A file may hold a number or a boolean where the option is one; everything else must be text. */
function asText(option: OptionSpec, value: unknown): string | undefined {
  const isQuantity = ['port', 'integer', 'number', 'bytes', 'duration'].includes(option.type)
  switch (typeof value) {
    case 'string':
      return value
    case 'boolean':
      return option.type === 'boolean' ? String(value) : undefined
    case 'number':
      return isQuantity ? String(value) : undefined
    case 'object':
      return option.type === 'json' ? JSON.stringify(value) : undefined
    default:
      return undefined
  }
}

function withoutCredentials(text: string): string {
  return text.replace(/\/\/[^/@]*@/, '//***@')
}

function readConfigFile(command: CommandSpec, flags: Flags, env: Env): ConfigFile | undefined {
  const option = command.options[CONFIG_FLAG]
  if (!option) return undefined
  const given = fromFlag(option, flags[CONFIG_FLAG]) ?? fromEnv(command, option, env)
  if (!given) return undefined
  const path = String(parseGiven(option, given))
  const values = parseConfigFile(path, readText(path, given.from))
  refuseUnknownKeys(command, { path, values })
  return { path, values }
}

function readText(path: string, from: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch (error) {
    const reason =
      (error as NodeJS.ErrnoException).code === 'ENOENT' ? 'there is no such file' : String(error)
    throw new ProxyError('config_invalid', `${from}: cannot read ${path}: ${reason}`, { cause: error })
  }
}

function parseConfigFile(path: string, text: string): Readonly<Record<string, unknown>> {
  let parsed: unknown
  try {
    parsed = JSON.parse(text)
  } catch (error) {
    // The parser quotes the text around the fault, and there may be keys in it.
    const reason = (error as Error).message.replace(/, (\.\.\.)?".*/s, '')
    throw new ProxyError('config_invalid', `${path} is not JSON: ${reason}`)
  }
  if (isRecord(parsed)) return parsed
  throw new ProxyError('config_invalid', `${path} must hold one JSON object with an option per key`)
}

function refuseUnknownKeys(command: CommandSpec, file: ConfigFile): void {
  const known = Object.values(command.options).flatMap(fileKeys)
  const unknown = Object.keys(file.values).find((key) => !known.includes(key))
  if (unknown === undefined) return
  const hint = didYouMean(unknown, known)
  throw new ProxyError('config_invalid', `${file.path}: there is no option "${unknown}"${hint}`)
}

/**
 * Variables that Kubernetes and Docker set in every container beside a service called `llm-proxy`:
 * `LLM_PROXY_PORT=tcp://10.0.0.1:8080`. They are not meant for us.
 * @see https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
 */
function isServiceLink(name: string, text: string): boolean {
  return /_SERVICE_(HOST|PORT)(_|$)|_PORT_\d+_(TCP|UDP|SCTP)/.test(name) || /^(tcp|udp|sctp):\/\//.test(text)
}

/**
 * Refuses variables with our prefix that mean nothing to any command: a misspelt one would be silently without
 * effect.
 * @throws ProxyError `config_invalid`
 */
export function refuseUnknownEnv(commands: readonly CommandSpec[], env: Env): void {
  const known = commands.flatMap((command) =>
    Object.values(command.options).flatMap((option) => envNames(command, option)),
  )
  for (const [name, text] of Object.entries(env)) {
    if (!name.startsWith(ENV_PREFIX) || known.includes(name) || isServiceLink(name, text ?? '')) continue
    throw new ProxyError('config_invalid', `${name} is not a setting of llm-proxy${hintFor(name, known)}`)
  }
}

/** The prefix, which all of them have, makes no two of them alike. */
function hintFor(name: string, known: readonly string[]): string {
  const ownParts = known
    .filter((other) => other.startsWith(ENV_PREFIX))
    .map((other) => other.slice(ENV_PREFIX.length))
  const meant = nearest(name.slice(ENV_PREFIX.length), ownParts)
  return meant === undefined ? '' : ` (did you mean ${ENV_PREFIX}${meant}?)`
}
