// What the page's fixtures need of xUnit and NUnit, which cannot be had from npm.

using System;
using System.Threading.Tasks;

namespace Xunit
{
    public interface IAsyncLifetime
    {
        Task InitializeAsync();

        Task DisposeAsync();
    }

    public interface ICollectionFixture<T>
    {
    }

    public sealed class CollectionDefinitionAttribute : Attribute
    {
        public CollectionDefinitionAttribute(string name)
        {
            Name = name;
        }

        public string Name { get; }
    }
}

namespace NUnit.Framework
{
    public sealed class SetUpFixtureAttribute : Attribute
    {
    }

    public sealed class OneTimeSetUpAttribute : Attribute
    {
    }

    public sealed class OneTimeTearDownAttribute : Attribute
    {
    }
}
