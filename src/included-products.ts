/** Access to the products, the optional parts of the program, some of which a reduced program lacks. */
import { ProxyError } from './base/errors.ts'
import * as all from './products.ts'

/** All products by name. */
type Products = typeof all

export type EmbeddedEngineConfig = all.embedded.EmbeddedEngineConfig
export type ServerRolloutsConfig = all.rollouts.ServerRolloutsConfig

/** Returns whether a server runs rollouts or forwards them. */
export function hasRollouts({ runner, rolloutServer }: ServerRolloutsConfig): boolean {
  return (runner ?? rolloutServer) !== undefined
}

export const products: Partial<Products> = all

const NAMES: Record<keyof Products, string> = {
  embedded: 'the embedded engine',
  inspector: 'the inspector',
  postgres: 'PostgreSQL',
  rollouts: 'rollouts',
}

/**
 * Returns a product that the configuration requires.
 * @param remedy advice that the error contains, such as an option to set. Default: none
 * @throws ProxyError `config_invalid` if the program lacks it
 */
export function requireProduct<Name extends keyof Products>(name: Name, remedy?: string): Products[Name] {
  const product = products[name]
  if (product) return product
  const reason = `This program was built without ${NAMES[name]}`
  throw new ProxyError('config_invalid', remedy === undefined ? reason : `${reason}: ${remedy}`)
}
