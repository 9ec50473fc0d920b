/** Optional packages: the executable and a checkout include them; users of the npm package install them as needed. */
import { ProxyError } from './errors.ts'

/**
 * Imports an optional package.
 * @param name name of the package
 * @param purpose the feature that needs it; begins the error message
 * @param load imports the package by a literal name, which the build of the executable requires
 * @throws ProxyError `start_failed` if it is not installed
 */
export async function importOptionalPackage<T>(
  name: string,
  purpose: string,
  load: () => Promise<T>,
): Promise<T> {
  try {
    return await load()
  } catch (thrown) {
    const { code, message } = thrown as NodeJS.ErrnoException
    const isMissing = code === 'ERR_MODULE_NOT_FOUND' && message.includes(`'${name}'`)
    if (!isMissing) throw thrown
    throw new ProxyError('start_failed', `${purpose} needs the package ${name}: npm install ${name}`)
  }
}
