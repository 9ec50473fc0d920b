/**
 * What an option is. A command's options are a table of these (`options/`, `commands.ts`): flag, environment variable,
 * file key, type, default, help and the TypeScript type of the value all follow from one entry.
 */

interface OptionBase {
  /** Without dashes: `queue-wait` is `--queue-wait`, `LLM_PROXY_QUEUE_WAIT`, and `queue_wait` in a file. */
  flag: string
  /** One letter, of an option that is typed all day: `f` for `-f`. */
  short?: string
  /** Heading in the help text. */
  group: string
  help: string
  /** Few need it: `--help` leaves it out, `--help-all` has it. */
  hidden?: true
  /** The flag's name in earlier releases, which is understood wherever the new one is. */
  formerly?: string
  /** Further environment variables, read after the derived one. */
  env?: readonly string[]
  /** Says something about this one run, so that neither the environment nor a file has a say in it. */
  flagOnly?: true
  /** Its value appears in no message. */
  secret?: true
  /**
   * Given any number of times; separated by commas in the environment (paths by colons too), an array in a file.
   */
  repeatable?: true
}

interface TextOption extends OptionBase {
  /**
   * A `socketUrl` may be ws or wss too, a `dialUrl` with `dns+` before it as well. A `basePath` is `/a/b` or nothing, a
   * `network` an address or a CIDR block. A `key` is a secret of the proxy's own; `@file` reads it, or several, from a
   * file.
   */
  type: 'text' | 'path' | 'directory' | 'url' | 'socketUrl' | 'dialUrl' | 'basePath' | 'network' | 'key'
  default?: string
}

/**
 * A quantity. Default and limits are written the way a user writes the value (`64MiB`, `30s`), so that help and
 * messages can quote them; the value itself is in bytes, milliseconds or plain numbers.
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
  /** What others call one of the values: `warning` for `warn`. */
  synonyms?: Readonly<Record<string, string>>
  default?: string
}

/** `--x` and `--no-x`. */
interface BooleanOption extends OptionBase {
  type: 'boolean'
  default: 'true' | 'false'
}

/** A JSON object, `{"temperature": 0.7}`. */
interface JsonOption extends OptionBase {
  type: 'json'
  default?: string
}

export type OptionSpec = TextOption | QuantityOption | EnumOption | BooleanOption | JsonOption

type OptionWithoutGroup<O> = O extends unknown ? Omit<O, 'group'> : never

type OptionSpecs = Readonly<Record<string, OptionWithoutGroup<OptionSpec>>>

type WithGroup<T extends OptionSpecs> = { readonly [K in keyof T]: T[K] & { readonly group: string } }

/** Options under one heading of the help text. */
export function grouped<const T extends OptionSpecs>(group: string, options: T): WithGroup<T> {
  return withAll(options, { group }) as WithGroup<T>
}

/** Options under one heading, all of them `flagOnly`. */
export function groupedFlags<const T extends OptionSpecs>(group: string, options: T): WithGroup<T> {
  return withAll(options, { group, flagOnly: true }) as WithGroup<T>
}

/** A table with these fields in each of its options. */
export function withAll(table: Readonly<Record<string, object>>, fields: Partial<OptionBase>): object {
  return Object.fromEntries(Object.entries(table).map(([key, option]) => [key, { ...option, ...fields }]))
}

export type JsonObject = Readonly<Record<string, unknown>>

export type OptionTable = Readonly<Record<string, OptionSpec>>

export interface CommandSpec<T extends OptionTable = OptionTable> {
  /** As typed: `serve`, `sessions list`. */
  name: string
  /** One line for the list of commands. */
  summary: string
  /** Default: `LLM_PROXY_`; the stand-in engine has its own, so that one environment can hold both. */
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
export type ConfigOf<C extends CommandSpec> = {
  readonly [K in keyof C['options']]: ValueOf<C['options'][K]>
}

export const ENV_PREFIX = 'LLM_PROXY_'

/** The option's environment variables, the first one that is set wins. */
export function envNames({ envPrefix = ENV_PREFIX }: CommandSpec, option: OptionSpec): string[] {
  if (option.flagOnly) return []
  const derived = getFlags(option).map((flag) => envPrefix + underscored(flag).toUpperCase())
  return [...derived, ...(option.env ?? [])]
}

/** The option's keys in a configuration file, the first one that is there wins; empty where a file has no say. */
export function fileKeys(option: OptionSpec): string[] {
  return option.flagOnly || option.flag === CONFIG_FLAG ? [] : getFlags(option).map(underscored)
}

/** Its flag, and the one of earlier releases, without dashes in front. */
export function getFlags({ flag, formerly }: OptionSpec): string[] {
  return formerly === undefined ? [flag] : [flag, formerly]
}

function underscored(flag: string): string {
  return flag.replaceAll('-', '_')
}

/** The flag, and its key, that names the configuration file; a command without it reads none. */
export const CONFIG_FLAG = 'config'
