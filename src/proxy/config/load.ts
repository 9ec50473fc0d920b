/** Loads and checks a configuration from flags, environment and file, in this order of precedence. */
import { readFileSync } from 'node:fs'
import { ProxyError } from '../../base/errors.ts'
import { isRecord } from '../../base/json.ts'
import { hideCredentials } from '../../base/shown-url.ts'
import { findNearest, formatSuggestion } from './nearest.ts'
import {
  CONFIG_FLAG,
  type CommandConfig,
  type CommandSpec,
  ENV_PREFIX,
  listEnvNames,
  listFileKeys,
  type OptionSpec,
} from './option.ts'
import { describeExpectation, parseValue } from './values.ts'

/** The values of the command line, by option key. */
export type Flags = Readonly<Record<string, string | boolean | readonly string[] | undefined>>

export type Env = Readonly<Record<string, string | undefined>>

/** The value of an option, and its source for messages. */
interface OptionValue {
  value: unknown
  from: string
}

interface ConfigFile {
  path: string
  values: Readonly<Record<string, unknown>>
}

/**
 * Loads the command's configuration. It reads only `flags`, `env` and the files that they name.
 * @throws ProxyError `config_invalid` with one line: the error, the source of the value and the allowed values
 */
export function loadConfig<C extends CommandSpec>(command: C, flags: Flags, env: Env): CommandConfig<C> {
  const file = readConfigFile(command, flags, env)
  const config: Record<string, unknown> = {}
  // Environment variables may name key files of other commands, too.
  const secrets = Object.entries(env).flatMap(([name, value]) =>
    OWN_VARIABLES.test(name) ? getKeyFiles(value) : [],
  )
  if (file) secrets.push(file.path)
  for (const [key, option] of Object.entries(command.options)) {
    const value = fromFlag(option, flags[key]) ?? fromEnv(command, option, env) ?? fromFile(option, file)
    config[key] = value ? parseOptionValue(option, value) : getDefault(option)
    if (value && option.type === 'key') secrets.push(...getKeyFiles(value.value))
  }
  Object.defineProperty(config, SECRET_FILES, { value: secrets })
  return config as CommandConfig<C>
}

/**
 * The key of the property with the secret files. The property is not enumerable, because configurations are printed and
 * spread.
 */
const SECRET_FILES = Symbol('secret files')
const OWN_VARIABLES = /^(LLM_PROXY|REMOTE_AGENT)_/

/** Returns the files that contain the configuration's keys, and the configuration file. Agents must not read them. */
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

/**
 * Returns the value of an option's environment variable. An empty variable counts as unset, as in compose files and
 * shells.
 */
function fromEnv(command: CommandSpec, option: OptionSpec, env: Env): OptionValue | undefined {
  for (const name of listEnvNames(command, option)) {
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
  const key = listFileKeys(option).find((name) => Object.hasOwn(file.values, name))
  if (key === undefined) return undefined
  return { value: file.values[key], from: `${key} in ${file.path}` }
}

function getDefault(option: OptionSpec): unknown {
  if (option.repeatable) return []
  return option.default === undefined ? undefined : parseValue(option, option.default)
}

function parseOptionValue(option: OptionSpec, optionValue: OptionValue): unknown {
  if (!option.repeatable) return parseOne(option, optionValue.value, optionValue.from)
  const items = Array.isArray(optionValue.value) ? optionValue.value : [optionValue.value]
  const values = option.type === 'key' ? items.flatMap((item) => readKeys(item, optionValue.from)) : items
  return values.map((value) => parseOne(option, value, optionValue.from))
}

/** Returns the lines of the file for `@file`, and any other value itself. */
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

/** The placeholder that deployment files contain instead of a key or a database. */
const PLACEHOLDER = /^change[-_]?me/i

function rejectPlaceholder({ flag, type }: OptionSpec, text: string, from: string): void {
  if (!PLACEHOLDER.test(text) || (flag !== 'db' && type !== 'key')) return
  const own = flag === 'db' ? 'your own database' : 'your own key, such as the output of openssl rand -hex 32'
  throw new ProxyError('config_invalid', `${from} still has its placeholder: replace it with ${own}`)
}

function parseOne(option: OptionSpec, value: unknown, from: string): unknown {
  const text = toOptionText(option, value)
  if (text !== undefined) rejectPlaceholder(option, text, from)
  const parsed = text === undefined ? undefined : parseValue(option, text)
  if (parsed !== undefined) return parsed
  const shown = option.secret ? 'invalid value' : `invalid value ${showValue(option, value)}`
  const hint = option.type === 'enum' && text !== undefined ? formatSuggestion(text, option.values) : ''
  throw new ProxyError('config_invalid', `${from}: ${shown}: expected ${describeExpectation(option)}${hint}`)
}

/**
 * Returns the text of a value, which may be from a file. A number or a boolean is valid for an option of that type;
 * every other value must be text.
 */
function toOptionText(option: OptionSpec, value: unknown): string | undefined {
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

/** Returns a rejected value as JSON text, without the credentials of a URL. */
function showValue({ type }: OptionSpec, value: unknown): string {
  const text = JSON.stringify(value)
  const isUrl = type === 'url' || type === 'socketUrl' || type === 'dialUrl'
  if (!isUrl && !text.includes('://')) return text
  return typeof value === 'string' ? JSON.stringify(hideCredentials(value)) : hideCredentials(text)
}

function readConfigFile(command: CommandSpec, flags: Flags, env: Env): ConfigFile | undefined {
  const option = command.options[CONFIG_FLAG]
  if (!option) return undefined
  const value = fromFlag(option, flags[CONFIG_FLAG]) ?? fromEnv(command, option, env)
  if (!value) return undefined
  const path = String(parseOptionValue(option, value))
  const values = parseConfigFile(path, readText(path, value.from))
  rejectUnknownKeys(command, { path, values })
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
    // The message of the parser quotes text near the error, which may contain keys.
    const reason = (error as Error).message.replace(/, (\.\.\.)?".*/s, '')
    throw new ProxyError('config_invalid', `${path} is not JSON: ${reason}`)
  }
  if (isRecord(parsed)) return parsed
  throw new ProxyError('config_invalid', `${path} must contain one JSON object with one option per key`)
}

function rejectUnknownKeys(command: CommandSpec, file: ConfigFile): void {
  const known = Object.values(command.options).flatMap(listFileKeys)
  const unknown = Object.keys(file.values).find((key) => !known.includes(key))
  if (unknown === undefined) return
  const hint = formatSuggestion(unknown, known)
  throw new ProxyError('config_invalid', `${file.path}: there is no option "${unknown}"${hint}`)
}

/**
 * Returns whether a variable is a service link, which Kubernetes and Docker set in each container next to a service
 * named `llm-proxy`: `LLM_PROXY_PORT=tcp://10.0.0.1:8080`.
 * @see https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
 */
function isServiceLink(name: string, text: string): boolean {
  return /_SERVICE_(HOST|PORT)(_|$)|_PORT_\d+_(TCP|UDP|SCTP)/.test(name) || /^(tcp|udp|sctp):\/\//.test(text)
}

/**
 * Rejects variables with the proxy's prefix that are not an option of any command: a misspelt one would silently have
 * no effect.
 * @throws ProxyError `config_invalid`
 */
export function rejectUnknownEnv(commands: readonly CommandSpec[], env: Env): void {
  const known = commands.flatMap((command) =>
    Object.values(command.options).flatMap((option) => listEnvNames(command, option)),
  )
  for (const [name, text] of Object.entries(env)) {
    if (!name.startsWith(ENV_PREFIX) || known.includes(name) || isServiceLink(name, text ?? '')) continue
    throw new ProxyError('config_invalid', `${name} is not a setting of llm-proxy${getHint(name, known)}`)
  }
}

/**
 * Returns the suggestion of a similar name. It compares names without their common prefix, which would make all names
 * similar.
 */
function getHint(name: string, known: readonly string[]): string {
  const ownParts = known
    .filter((other) => other.startsWith(ENV_PREFIX))
    .map((other) => other.slice(ENV_PREFIX.length))
  const meant = findNearest(name.slice(ENV_PREFIX.length), ownParts)
  return meant === undefined ? '' : ` (did you mean ${ENV_PREFIX}${meant}?)`
}
