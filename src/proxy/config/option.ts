/**
 * The definition of options. A command's options are a table of these entries (`options/`, `commands.ts`). Flag,
 * environment variable, file key, type, default, help and the TypeScript type of the value are derived from one entry.
 */

interface OptionBase {
  /** Name without dashes: `queue-wait` is `--queue-wait`, `LLM_PROXY_QUEUE_WAIT`, and `queue_wait` in a file. */
  flag: string
  /** One letter for a frequent option: `f` for `-f`. */
  short?: string
  /** Heading in the help text. */
  group: string
  help: string
  /** Shown by `--help-all` but not by `--help`. */
  hidden?: true
  /** The flag's name in earlier releases, accepted wherever the current one is. */
  formerly?: string
  /** Further environment variables, read after the derived one. */
  env?: readonly string[]
  /** Applies to a single run, and cannot be set by the environment or a file. */
  flagOnly?: true
  /** The value must not appear in messages. */
  secret?: true
  /**
   * May be given any number of times; separated by commas in the environment (paths by colons too), an array in a file.
   */
  repeatable?: true
}

interface TextOption extends OptionBase {
  /**
   * A `socketUrl` may also be ws or wss, a `dialUrl` also `dns+` followed by one of these. A `basePath` is `/a/b` or
   * empty, a `network` an address or a CIDR block. A `key` is a secret of the proxy; `@file` reads one or several from
   * a file.
   */
  type: 'text' | 'path' | 'directory' | 'url' | 'socketUrl' | 'dialUrl' | 'basePath' | 'network' | 'key'
  default?: string
}

/**
 * A quantity. Default and limits are written in the user's notation (`64MiB`, `30s`), so that help and messages can
 * quote them; the value itself is in bytes, milliseconds or plain numbers.
 */
export interface QuantityOption extends OptionBase {
  type: 'port' | 'integer' | 'number' | 'bytes' | 'duration'
  default?: string
  min?: string
  max?: string
}

export interface EnumOption extends OptionBase {
  type: 'enum'
  values: readonly string[]
  /** Other names for a value: `warning` for `warn`. */
  synonyms?: Readonly<Record<string, string>>
  default?: string
}

/** A switch: `--x` and `--no-x`. */
interface BooleanOption extends OptionBase {
  type: 'boolean'
  default: 'true' | 'false'
}

/** A JSON object, such as `{"temperature": 0.7}`. */
interface JsonOption extends OptionBase {
  type: 'json'
  default?: string
}

export type OptionSpec = TextOption | QuantityOption | EnumOption | BooleanOption | JsonOption

type OptionWithoutGroup<O> = O extends unknown ? Omit<O, 'group'> : never

type OptionSpecs = Readonly<Record<string, OptionWithoutGroup<OptionSpec>>>

type WithGroup<T extends OptionSpecs> = { readonly [K in keyof T]: T[K] & { readonly group: string } }

/** Returns the options under a heading of the help text. */
export function groupOptions<const T extends OptionSpecs>(group: string, options: T): WithGroup<T> {
  return withAll(options, { group }) as WithGroup<T>
}

/** Returns the options under a heading of the help text, each of them `flagOnly`. */
export function addFlagGroup<const T extends OptionSpecs>(group: string, options: T): WithGroup<T> {
  return withAll(options, { group, flagOnly: true }) as WithGroup<T>
}

/** Returns the table with these fields added to each of its options. */
export function withAll(table: Readonly<Record<string, object>>, fields: Partial<OptionBase>): object {
  return Object.fromEntries(Object.entries(table).map(([key, option]) => [key, { ...option, ...fields }]))
}

export type JsonObject = Readonly<Record<string, unknown>>

export type OptionTable = Readonly<Record<string, OptionSpec>>

export interface CommandSpec<T extends OptionTable = OptionTable> {
  /** The name as typed: `serve`, `sessions list`. */
  name: string
  /** One line for the list of commands. */
  summary: string
  /** Default: `LLM_PROXY_`. The embedded engine has its own, so that one environment can configure both. */
  envPrefix?: string
  options: T
}

type Scalar<O extends OptionSpec> = O extends { type: 'enum'; values: readonly (infer V)[] }
  ? V
  : O extends BooleanOption
    ? boolean
    : O extends JsonOption
      ? JsonObject
      : O extends TextOption
        ? string
        : number

type ValueOf<O extends OptionSpec> = O extends { repeatable: true }
  ? readonly Scalar<O>[]
  : O extends { default: string }
    ? Scalar<O>
    : Scalar<O> | undefined

/** The configuration that a command's table describes. */
export type CommandConfig<C extends CommandSpec> = {
  readonly [K in keyof C['options']]: ValueOf<C['options'][K]>
}

export const ENV_PREFIX = 'LLM_PROXY_'

/** Returns the option's environment variables; the first one that is set applies. */
export function listEnvNames({ envPrefix = ENV_PREFIX }: CommandSpec, option: OptionSpec): string[] {
  if (option.flagOnly) return []
  const derived = getFlags(option).map((flag) => envPrefix + toSnakeCase(flag).toUpperCase())
  return [...derived, ...(option.env ?? [])]
}

/** Returns the option's keys in a configuration file; the first one present applies. Empty if a file cannot set it. */
export function listFileKeys(option: OptionSpec): string[] {
  return option.flagOnly || option.flag === CONFIG_FLAG ? [] : getFlags(option).map(toSnakeCase)
}

/** Returns the flag and its name in earlier releases, without dashes. */
export function getFlags({ flag, formerly }: OptionSpec): string[] {
  return formerly === undefined ? [flag] : [flag, formerly]
}

function toSnakeCase(flag: string): string {
  return flag.replaceAll('-', '_')
}

/** The flag and the key of the option that names the configuration file; a command without it reads none. */
export const CONFIG_FLAG = 'config'
