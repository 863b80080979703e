"""Which keys of the configuration does the source text read? Found by following annotations, never by a name alone.

An attribute access `x.field` counts where `x` is known to be a section: a parameter or field annotated with its class,
`self.config` assigned from one, `config.rollout` reached from the tree, the result of a function annotated so. What
cannot be followed does not count: a key is reported as unread rather than taken for read because some other object has
an attribute of that name.
"""

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Key = tuple[str, str]
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
VALIDATORS = ("field_validator", "model_validator", "field_serializer")


@dataclass
class Sections:
    """The classes whose fields are looked for.

    Attributes:
        fields: class -> field -> class of the section it holds, or None for a value.
        stands_for: a Protocol's name -> the section that it stands for in code that may not import it.
    """

    fields: dict[str, dict[str, str | None]]
    stands_for: dict[str, str] = field(default_factory=dict)

    def named(self, name: str) -> str:
        """The section that an annotation's name means, or the name itself."""
        return self.stands_for.get(name, name)


@dataclass
class _World:
    """What is known of all modules: attributes and return values of classes and functions by their annotations."""

    sections: Sections
    classes: set[str] = field(default_factory=set)
    bases: dict[str, list[str]] = field(default_factory=dict)
    attributes: dict[Key, str | None] = field(default_factory=dict)
    returns: dict[Key, str | None] = field(default_factory=dict)
    reads: set[Key] = field(default_factory=set)
    in_property: dict[Key, set[Key]] = field(default_factory=dict)

    def learn(self, table: dict[Key, str | None], key: Key, kind: str | None) -> None:
        """Remember a type; two different ones for a name mean that it is not known."""
        if kind is not None:
            table[key] = kind if table.get(key, kind) == kind else None

    def member(self, table: Mapping[Key, str | None], owner: str, name: str) -> str | None:
        """A class's entry in a table of attributes or return values, or that of a class it inherits from."""
        todo, seen = [owner], set[str]()
        while todo:
            kind = todo.pop(0)
            if (kind, name) in table:
                return table[kind, name]
            seen.add(kind)
            todo += [base for base in self.bases.get(kind, ()) if base not in seen]
        return None

    def meaning(self, annotation: ast.expr | None) -> str | None:
        """The class that an annotation names, None being left aside; None if it names no class of ours."""
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            return self.meaning(ast.parse(annotation.value, mode="eval").body)
        if isinstance(annotation, ast.BinOp):
            found = {self.meaning(side) for side in (annotation.left, annotation.right)} - {None}
            return found.pop() if len(found) == 1 else None
        if isinstance(annotation, ast.Attribute):
            return self._known(annotation.attr)
        if isinstance(annotation, ast.Subscript):
            outer = ast.unparse(annotation.value).rpartition(".")[2]
            if outer in ("Iterator", "Generator", "AsyncIterator", "Awaitable", "Annotated", "Final", "ClassVar"):
                inner = annotation.slice
                return self.meaning(inner.elts[0] if isinstance(inner, ast.Tuple) else inner)
            return None
        return self._known(annotation.id) if isinstance(annotation, ast.Name) else None

    def _known(self, name: str) -> str | None:
        name = self.sections.named(name)
        return name if name in self.sections.fields or name in self.classes else None


def reads_of(sources: Mapping[str, str], config_sources: Mapping[str, str], sections: Sections) -> set[Key]:
    """(section class, field) of every field that `sources` read.

    Args:
        sources: name -> text of the modules that may read keys.
        config_sources: the modules that define the sections. A property of a section counts as a reading of what it
            reads where `sources` access it; a validator never does.
    """
    trees = [ast.parse(text) for text in sources.values()]
    config_trees = [ast.parse(text) for text in config_sources.values()]
    world = _World(sections)
    world.classes = {node.name for tree in [*trees, *config_trees] for node in _all(tree, ast.ClassDef)}
    for tree in trees:
        for node in _all(tree, ast.ClassDef):
            world.bases[node.name] = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
    for _ in range(3):  # what `self.x = y.z` means may need another module's attribute first; three hops are enough
        for tree in [*trees, *config_trees]:
            _Module(world, counts=False).visit_body(tree.body, {}, None)
    for tree in config_trees:
        _properties(world, tree)
    for tree in trees:
        _Module(world, counts=True).visit_body(tree.body, {}, None)
    return _with_properties(world)


def _properties(world: _World, tree: ast.Module) -> None:
    """What each property or method of a section reads of it."""
    for owner in _all(tree, ast.ClassDef):
        for node in owner.body:
            if owner.name not in world.sections.fields or not isinstance(node, FunctionNode) or _validates(node):
                continue
            before, world.reads = world.reads, set()
            _Module(world, counts=True).visit_function(node, {}, owner.name)
            world.in_property[owner.name, node.name] = world.reads
            world.reads = before


def _with_properties(world: _World) -> set[Key]:
    """The reads, those through properties included."""
    todo, done = list(world.reads), set[Key]()
    while todo:
        key = todo.pop()
        if key not in done:
            done.add(key)
            todo += world.in_property.get(key, ())
    return done


def _validates(node: FunctionNode) -> bool:
    return any(name in ast.unparse(decorator) for decorator in node.decorator_list for name in VALIDATORS)


def _all(tree: ast.AST, kind: type[ast.ClassDef]) -> Iterable[ast.ClassDef]:
    return (node for node in ast.walk(tree) if isinstance(node, kind))


Scope = dict[str, str | None]


class _Module:
    """Walks one module's statements with the types of its names."""

    def __init__(self, world: _World, *, counts: bool) -> None:
        self.world, self.counts = world, counts

    def visit_body(self, body: Sequence[ast.stmt], scope: Scope, owner: str | None) -> None:
        for node in body:
            self.visit(node, scope, owner)

    def visit(self, node: ast.AST, scope: Scope, owner: str | None) -> None:
        """Note types and reads of a statement or expression. `owner`: the class around, what `self` is."""
        if isinstance(node, FunctionNode):
            self.world.learn(self.world.returns, (owner or "", node.name), self.world.meaning(node.returns))
            self.visit_function(node, scope, owner)
        elif isinstance(node, ast.ClassDef):
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    kind = self.world.meaning(statement.annotation)
                    self.world.learn(self.world.attributes, (node.name, statement.target.id), kind)
            self.visit_body(node.body, dict(scope), node.name)
        elif isinstance(node, ast.Lambda):
            self.visit(node.body, dict(scope), owner)
        else:
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                self.type_of(node, scope)
            for child in ast.iter_child_nodes(node):
                self.visit(child, scope, owner)
            self.bind(node, scope, owner)

    def visit_function(self, node: FunctionNode, scope: Scope, owner: str | None) -> None:
        inner = dict(scope)
        arguments = node.args
        for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
            inner[argument.arg] = self.world.meaning(argument.annotation)
        first = [*arguments.posonlyargs, *arguments.args][:1]
        if owner is not None and first and not any("staticmethod" in ast.unparse(d) for d in node.decorator_list):
            inner[first[0].arg] = owner
        self.visit_body(node.body, inner, owner)

    def bind(self, node: ast.AST, scope: Scope, owner: str | None) -> None:
        """Types that a statement gives to names and to attributes of self."""
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self.assign(target, node.value, scope, owner)
        elif isinstance(node, ast.AnnAssign):
            self.give(node.target, self.world.meaning(node.annotation), scope, owner)
        elif isinstance(node, ast.NamedExpr):
            self.assign(node.target, node.value, scope, owner)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self.assign(node.optional_vars, node.context_expr, scope, owner)

    def assign(self, target: ast.expr, value: ast.expr, scope: Scope, owner: str | None) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for one, its in zip(target.elts, value.elts, strict=True):
                self.assign(one, its, scope, owner)
        else:
            self.give(target, self.type_of(value, scope), scope, owner)

    def give(self, target: ast.expr, kind: str | None, scope: Scope, owner: str | None) -> None:
        if isinstance(target, ast.Name):
            scope[target.id] = kind
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
            holder = scope.get(target.value.id)
            if holder is not None and holder == owner:
                self.world.learn(self.world.attributes, (holder, target.attr), kind)

    def type_of(self, node: ast.expr, scope: Scope) -> str | None:
        """The class of an expression's value as far as annotations say; reads of sections on the way are counted."""
        world = self.world
        if isinstance(node, ast.Name):
            return scope.get(node.id)
        if isinstance(node, ast.Attribute):
            base = self.type_of(node.value, scope)
            if base in world.sections.fields:
                if self.counts:
                    world.reads.add((base, node.attr))
                held = world.sections.fields[base].get(node.attr)
                return held if held is not None else world.returns.get((base, node.attr))
            if base is None:
                return None
            return world.member(world.attributes, base, node.attr) or world.member(world.returns, base, node.attr)
        if isinstance(node, ast.Call):
            return self.type_of_call(node, scope)
        if isinstance(node, ast.Await | ast.NamedExpr):
            return self.type_of(node.value, scope)
        if isinstance(node, ast.IfExp):
            return self.type_of(node.body, scope) or self.type_of(node.orelse, scope)
        if isinstance(node, ast.BoolOp):
            return next((kind for value in node.values if (kind := self.type_of(value, scope)) is not None), None)
        return None

    def type_of_call(self, node: ast.Call, scope: Scope) -> str | None:
        called = node.func
        if isinstance(called, ast.Name):
            name = self.world.sections.named(called.id)
            known = name in self.world.classes or name in self.world.sections.fields
            return name if known else self.world.returns.get(("", called.id))
        if isinstance(called, ast.Attribute):
            base = self.type_of(called.value, scope)
            if called.attr == "model_copy":
                return base
            return self.world.member(self.world.returns, base or "", called.attr)
        return None


def texts(paths: Iterable[Path]) -> dict[str, str]:
    """Path -> text."""
    return {str(path): path.read_text() for path in paths}
